"""Small batches with everything that trips an algorithm: ragged groups, forks, tool results, padding, NaN parts.

Letters: N rollouts, T response tokens (padded for estimators, packed for losses).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.policy.batching.rows import Floats, Ids, Row
from ramet.types import AdvantageInputs, LossInputs, Need, StopReason

GROUPS = (0, 0, 0, 1, 1, 2, 2, 2, 2, 1, 1)
PARENTS = (-1, 0, -1, -1, -1, -1, 5, 5, 6, -1, -1)
PREFIXES = (
    -1,
    0,
    -1,
    -1,
    -1,
    -1,
    5,
    5,
    5,
    9,
    9,
)  # the row whose prefix it shares: the last two are forks of a masked one
THREADED = tuple(i in (1, 4, 8) for i in range(len(GROUPS)))  # rows whose second turn is in a thread of its own
FIRST_TURN, RESULT, WIDTH = 3, 2, 10  # sampled tokens of turn 0, inserted tokens after them, padded length
LENGTHS = (10, 8, 6, 3, 9, 7, 10, 6, 8, 7, 9)  # of the responses; the fourth ends in its first turn
STOPS = (StopReason.ANSWER, StopReason.LENGTH, StopReason.END, StopReason.CALL_LIMIT)  # of the rows, by turns


def tiny_batch(seed: int, needs: Collection[Need] = frozenset(Need), *, extra: bool = False) -> AdvantageInputs:
    """Eleven rollouts of three groups on ten positions; forks share their parent's first turn and tool result.

    Two are forks of one rollout that is masked, so no row is their parent. Optional fields are filled exactly if
    `needs` names them, token rewards, turn rewards and states if `extra` is set.
    """
    generator = torch.Generator().manual_seed(seed)
    parent = torch.tensor(PARENTS)
    n = len(parent)
    old = _logprobs(generator)
    mask, turn_ids = _layout()
    forked = torch.tensor(PREFIXES) >= 0
    rewards = torch.randn(n, generator=generator)
    format_part = torch.randint(0, 2, (n,), generator=generator).float()
    format_part[0] = float("nan")
    return AdvantageInputs(
        rewards=rewards,
        reward_parts={"correct": rewards.clone(), "format": format_part},
        mask=mask,
        group_ids=torch.tensor(GROUPS),
        turn_ids=turn_ids,
        thread_ids=torch.where(torch.tensor(THREADED)[:, None], turn_ids, turn_ids.clamp(max=0)),
        node_ids=torch.where(turn_ids >= 0, _shared(torch.arange(n * WIDTH).view(n, WIDTH)), -1),
        parent=parent,
        fork_position=torch.where(forked, FIRST_TURN + RESULT, 0),
        stop=[STOPS[i % len(STOPS)] for i in range(n)],
        n_tool_calls=torch.tensor([int(length > FIRST_TURN) for length in LENGTHS]),
        engine_logprobs=torch.where(mask, old + 0.01, 0.0),
        policy_versions=torch.where(mask, 0, -1),
        old_logprobs=old if Need.OLD_LOGPROBS in needs else None,
        token_rewards=torch.where(mask, 0.1, 0.0) * torch.arange(WIDTH) if extra else None,
        turn_rewards=_turn_rewards(generator, turn_ids) if extra else None,
        state_ids=_state_ids(turn_ids) if extra else None,
        entropies=_shared(torch.rand(n, WIDTH, generator=generator)) if Need.ENTROPY in needs else None,
        ref_logprobs=old - 0.05 if Need.REFERENCE in needs else None,
        values=torch.randn(n, WIDTH, generator=generator) if Need.VALUES in needs else None,
        greedy_rewards=torch.randn(3, generator=generator)[torch.tensor(GROUPS)]
        if Need.GREEDY_ROLLOUT in needs
        else None,
        rescored_logprobs=_rescored(old, mask) if Need.RESCORED in needs else None,
        probe_logprobs=_probed(turn_ids) if Need.PROBED in needs else None,
        reward_weights={"correct": 1.0, "format": 0.5},
    )


def tiny_loss_batch(seed: int, needs: Collection[Need] = frozenset(Need)) -> LossInputs:
    """The same rollouts packed on one axis, as one micro-batch. `logprobs` (and `entropies`) are leaves with gradient.

    Ratios pi / pi_old spread around 1; two tokens of every sequence are far off.
    """
    generator = torch.Generator().manual_seed(seed)
    padded = tiny_batch(seed, {*needs, Need.OLD_LOGPROBS})
    lengths = torch.tensor(LENGTHS)
    kept = torch.arange(WIDTH) < lengths[:, None]
    assert padded.old_logprobs is not None
    old = padded.old_logprobs[kept]
    shift = 0.1 * torch.randn(len(old), generator=generator)
    starts = torch.cumsum(lengths, 0) - lengths
    shift[starts], shift[starts + 1] = 2.0, -2.0
    entropies = padded.entropies
    return LossInputs(
        logprobs=(old + shift).requires_grad_(),
        old_logprobs=old,
        engine_logprobs=padded.engine_logprobs[kept],
        advantages=torch.where(padded.mask, torch.randn(len(lengths), WIDTH, generator=generator), 0.0)[kept],
        mask=padded.mask[kept],
        sequence_ids=torch.repeat_interleave(torch.arange(len(lengths)), lengths),
        rollout_ids=torch.repeat_interleave(torch.arange(len(lengths)), lengths),
        group_ids=torch.repeat_interleave(padded.group_ids, lengths),
        turn_ids=padded.turn_ids[kept],
        policy_versions=padded.policy_versions[kept],
        entropies=None if entropies is None else entropies[kept].requires_grad_(),
        ref_logprobs=None if padded.ref_logprobs is None else padded.ref_logprobs[kept],
    )


def _logprobs(generator: torch.Generator) -> Tensor:
    return _shared(-0.1 - 2.0 * torch.rand(len(PARENTS), WIDTH, generator=generator))


def _shared(values: Tensor) -> Tensor:
    """Give every fork the values of its prefix."""
    for row, source in enumerate(PREFIXES):
        if source >= 0:
            values[row, : FIRST_TURN + RESULT] = values[source, : FIRST_TURN + RESULT]
    return values


def _turn_rewards(generator: torch.Generator, turn_ids: Tensor) -> Tensor:
    """`[N, 2]`: of the turn with the call none, of the last one if there is one."""
    drawn = torch.randn(len(turn_ids), generator=generator)
    second = torch.where((turn_ids == 1).any(1), drawn, float("nan"))
    return torch.stack([torch.full_like(second, float("nan")), second], dim=1)


def _rescored(old: Tensor, mask: Tensor) -> Tensor:
    """`[N, T]`: likelier than before, a little less with every position; the last row has no context."""
    rescored = torch.where(mask, old + 0.3 - 0.05 * torch.arange(WIDTH), 0.0)
    rescored[-1] = torch.where(mask[-1], float("nan"), 0.0)
    return rescored


def _probed(turn_ids: Tensor) -> Tensor:
    """`[N, 2]`: likelier at the second turn, where there is one; the second group's task has no probe."""
    first = -1.0 - 0.1 * torch.tensor(GROUPS)
    second = torch.where((turn_ids == 1).any(1), first / (2 + torch.arange(len(turn_ids)) % 3), float("nan"))
    probed = torch.stack([first, second], dim=1)
    probed[torch.tensor(GROUPS) == 1] = float("nan")
    return probed


def _state_ids(turn_ids: Tensor) -> Tensor:
    """`[N, 2]`: all rollouts begin in one state; every other one comes to another, and the last turns have no name."""
    rows = torch.arange(len(turn_ids))
    second = torch.where((turn_ids == 1).any(1) & (rows < len(rows) - 2), 1 + rows % 2, -1)
    return torch.stack([torch.zeros_like(second), second], dim=1)


def _layout() -> tuple[Tensor, Tensor]:
    """Mask and turn ids: turn 0, then a tool result (of turn 0, not sampled), then turn 1, then padding."""
    position = torch.arange(WIDTH)
    inside = position < torch.tensor(LENGTHS)[:, None]
    result = (position >= FIRST_TURN) & (position < FIRST_TURN + RESULT)
    turn = torch.where(position < FIRST_TURN + RESULT, 0, 1)
    return inside & ~result, torch.where(inside, turn, -1)


def root_row(
    prompt: Ids,
    response: Ids,
    *,
    mask: NDArray[np.bool_] | None = None,
    logprobs: Floats | None = None,
    entropies: Floats | None = None,
    id: str = "0",
    group: int = 0,
    reward: float = 0.0,
) -> Row:
    """A rollout that starts from the prompt and shares no token with others, sampled by version 0.

    `mask`, `logprobs` and `entropies` are over the response. Without `mask` all of it is sampled, without `logprobs`
    the engine says 0 of every token, and without `entropies` it gives none.
    """
    length = len(response)
    sampled = np.ones(length, np.bool_) if mask is None else mask
    return Row(
        rollout_id=id,
        task_id=str(group),
        prompt_ids=prompt,
        response_ids=response,
        mask=sampled,
        engine_logprobs=np.zeros(length, np.float32) if logprobs is None else logprobs,
        entropies=entropies,
        turn_ids=np.zeros(length, np.int32),
        node_ids=np.arange(length, dtype=np.int32),
        policy_versions=np.where(sampled, 0, -1).astype(np.int32),
        group=group,
        parent=-1,
        fork_position=0,
        stop=StopReason.END,
        n_tool_calls=0,
        reward=reward,
        parts={},
        token_rewards={},
    )
