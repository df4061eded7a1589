"""A training step's rows and what belongs to their tokens: what estimators and losses are given is made of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.policy.batching.rows import Floats, Ids, Row
from ramet.policy.batching.threads import Threads
from ramet.policy.host_memory import sent
from ramet.types import AdvantageInputs, LossInputs, Need

PER_TOKEN = ("advantages", "old_logprobs", "ref_logprobs", "returns", "values", "weights")  # fields of a batch
OF_ESTIMATOR = ("rescored_logprobs", "probe_logprobs")  # fields that no rank reads


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """One step's N rows. Every other sequence has N float32 arrays, each `[T]` over the response of its row.

    It pickles: the driver gives the same batch to every rank. None: not needed. A row is a rollout, or one thread of a
    rollout (`by_thread`), as ranks are given it.
    """

    rows: Sequence[Row]
    rollouts: Sequence[int] | None = None  # of each row that is a thread: its rollout's number; None: rows are rollouts
    advantages: Sequence[Floats] = ()  # empty before the estimator has given them
    old_logprobs: Sequence[Floats] | None = None  # pi_old; None: as train.old_logprobs asks, the update computes it or
    # takes the policy itself, before its only optimiser step
    ref_logprobs: Sequence[Floats] | None = None
    returns: Sequence[Floats] | None = None  # what the critic is trained towards
    values: Sequence[Floats] | None = None  # the critic's before this step's update
    weights: Sequence[Floats] | None = None  # how much a token counts in the policy's loss; None: 1
    rescored_logprobs: Sequence[Floats] | None = None  # of a teacher or in another context; only estimators read it
    probe_logprobs: Sequence[Floats] | None = None  # [turns] each; only estimators read it
    kl_coef: float = 0.0  # of the KL in the loss or in the reward in this step
    reward_weights: Mapping[str, float] = field(default_factory=dict)  # of each configured reward, for estimators

    def advantage_inputs(
        self, needs: Collection[Need] = (), greedy_rewards: Sequence[float] | None = None
    ) -> AdvantageInputs:
        """Return the padded `[N, T]` batch of an estimator, with what its `needs` name; T is the longest response.

        `greedy_rewards` has one entry per row.
        """
        rows = self.rows
        greedy = greedy_rewards if Need.GREEDY_ROLLOUT in needs else None
        return AdvantageInputs(
            rewards=torch.tensor([row.reward for row in rows], dtype=torch.float32),
            reward_parts=_parts(rows),
            mask=padded([row.mask for row in rows], torch.bool, 0),
            group_ids=torch.tensor([row.group for row in rows], dtype=torch.int64),
            turn_ids=padded([row.turn_ids for row in rows], torch.int64, -1),
            thread_ids=padded([_thread_ids(row) for row in rows], torch.int64, -1),
            node_ids=padded([row.node_ids for row in rows], torch.int64, -1),
            parent=torch.tensor([row.parent for row in rows], dtype=torch.int64),
            fork_position=torch.tensor([row.fork_position for row in rows], dtype=torch.int64),
            stop=[row.stop for row in rows],
            n_tool_calls=torch.tensor([row.n_tool_calls for row in rows], dtype=torch.int64),
            engine_logprobs=padded([row.engine_logprobs for row in rows], torch.float32, 0),
            policy_versions=padded([row.policy_versions for row in rows], torch.int64, -1),
            old_logprobs=_floats(self.old_logprobs if Need.OLD_LOGPROBS in needs else None),
            token_rewards=_token_rewards(rows),
            turn_rewards=_turn_rewards(rows),
            state_ids=_state_ids(rows),
            entropies=_floats(_entropies(rows) if Need.ENTROPY in needs else None),
            ref_logprobs=_floats(self.ref_logprobs if Need.REFERENCE in needs else None),
            values=_floats(self.values if Need.VALUES in needs else None),
            greedy_rewards=None if greedy is None else torch.tensor(greedy, dtype=torch.float32),
            rescored_logprobs=_floats(self.rescored_logprobs if Need.RESCORED in needs else None),
            probe_logprobs=_probed(self.probe_logprobs if Need.PROBED in needs else None),
            reward_weights=self.reward_weights,
        )

    def with_advantages(
        self, advantages: Tensor, *, returns: Tensor | None = None, weights: Tensor | None = None
    ) -> TrainBatch:
        """Add what an estimator gave, `[N, T]` each."""
        return replace(
            self,
            advantages=self._unpadded(advantages),
            returns=None if returns is None else self._unpadded(returns),
            weights=None if weights is None else self._unpadded(weights),
        )

    def part(self, indices: Sequence[int]) -> TrainBatch:
        """Return the batch of these rows, whose parents are among them."""
        place = {index: i for i, index in enumerate(indices)}
        rows = [replace(self.rows[i], parent=place.get(self.rows[i].parent, -1)) for i in indices]
        given = {name: values for name in (*PER_TOKEN, *OF_ESTIMATOR) if (values := getattr(self, name))}
        cut: dict[str, Any] = {name: [values[i] for i in indices] for name, values in given.items()}
        return replace(self, rows=rows, **cut)

    def with_parts(self, parts: Sequence[Sequence[int]], batches: Sequence[TrainBatch]) -> TrainBatch:
        """Add what an estimator gave for `parts` of the rows, which are all rows together. A part without weights has
        weights of 1.
        """
        place = {index: (number, i) for number, part in enumerate(parts) for i, index in enumerate(part)}
        places = [place[index] for index in range(len(self.rows))]
        weights = [
            batch.weights or [np.ones(len(row.response_ids), np.float32) for row in batch.rows] for batch in batches
        ]
        returns = [batch.returns for batch in batches if batch.returns is not None]
        return replace(
            self,
            advantages=[batches[number].advantages[i] for number, i in places],
            returns=[returns[number][i] for number, i in places] if len(returns) == len(batches) else None,
            weights=[weights[number][i] for number, i in places] if any(batch.weights for batch in batches) else None,
        )

    @classmethod
    def of_parts(cls, batches: Sequence[TrainBatch], *, kl_coef: float) -> TrainBatch:
        """Return the batch of the rows of `batches`, one after the other, with what an estimator gave for them."""
        rows: list[Row] = []
        parts: list[range] = []
        for batch in batches:
            first = len(rows)
            rows += [replace(row, parent=row.parent + first if row.parent >= 0 else -1) for row in batch.rows]
            parts.append(range(first, len(rows)))
        return cls(rows=rows, kl_coef=kl_coef).with_parts(parts, batches)

    def by_thread(self) -> TrainBatch:
        """Return the batch whose rows are threads; itself where every rollout has one."""
        threads = Threads.of(self.rows)
        if len(threads.rows) == len(self.rows):
            return self
        given = {name: getattr(self, name) for name in PER_TOKEN if getattr(self, name) is not None}
        cut: dict[str, Any] = {name: threads.cut(values) for name, values in given.items()}
        return replace(self, rows=threads.rows, rollouts=threads.rollouts, **cut)

    def rollout_of(self, row: int) -> int:
        """The number of the rollout that this row is, or is a thread of."""
        return row if self.rollouts is None else self.rollouts[row]

    def by_rollout(self) -> list[list[int]]:
        """Indices of the rows of each rollout."""
        rows: dict[int, list[int]] = defaultdict(list)
        for i in range(len(self.rows)):
            rows[self.rollout_of(i)].append(i)
        return list(rows.values())

    def _unpadded(self, values: Tensor) -> list[Floats]:
        """The inverse of `padded`: one float32 array per row."""
        numbers = values.detach().to("cpu", torch.float32).numpy()
        return [numbers[i, : len(row.response_ids)] for i, row in enumerate(self.rows)]

    def has_signal(self, row: int) -> bool:
        """Whether any of its trained tokens has an advantage."""
        return bool(self.advantages[row][self.rows[row].mask].any())

    def n_trained(self, row: int) -> float:
        """The row's trained tokens, each counted by its weight."""
        trained = self.rows[row]
        return trained.n_trained if self.weights is None else float(self.weights[row][trained.mask].sum(dtype=float))

    def loss_inputs(self, indices: Sequence[int], logprobs: Tensor, entropies: Tensor | None) -> LossInputs:
        """Return these rows' responses one after another: T is the sum of their lengths.

        `logprobs` and `entropies` `[T]` are pi's, on the device where all are wanted.
        """
        rows, device = [self.rows[i] for i in indices], logprobs.device
        lengths = [len(row.response_ids) for row in rows]
        old = self._joined(self.old_logprobs, indices, device)
        return LossInputs(
            logprobs=logprobs,
            old_logprobs=logprobs.detach() if old is None else old,
            engine_logprobs=joined([row.engine_logprobs for row in rows], device),
            advantages=joined([self.advantages[i] for i in indices], device),
            mask=joined([row.mask for row in rows], device),
            sequence_ids=joined([np.repeat(np.arange(len(rows)), lengths)], device),
            rollout_ids=joined([np.repeat(self.rollout_numbers(indices), lengths)], device),
            group_ids=joined([np.repeat([row.group for row in rows], lengths)], device),
            turn_ids=joined([row.turn_ids for row in rows], device).long(),
            policy_versions=joined([row.policy_versions for row in rows], device).long(),
            entropies=entropies,
            ref_logprobs=self._joined(self.ref_logprobs, indices, device),
            returns=self._joined(self.returns, indices, device),
        )

    def rollout_numbers(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """Numbers of these rows' rollouts, from 0 among them, in the order of the first rows."""
        numbers: dict[int, int] = {}
        return np.array([numbers.setdefault(self.rollout_of(i), len(numbers)) for i in indices], np.int64)

    def token_weights(self, indices: Sequence[int], device: torch.device) -> Tensor | None:
        """Return how much each token of `loss_inputs` counts; None: 1."""
        return self._joined(self.weights, indices, device)

    @staticmethod
    def _joined(arrays: Sequence[Floats] | None, indices: Sequence[int], device: torch.device) -> Tensor | None:
        return None if arrays is None else joined([arrays[i] for i in indices], device)


def joined(arrays: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    return sent(torch.from_numpy(np.concatenate(arrays)), device)


def padded(arrays: Sequence[NDArray[Any]], dtype: torch.dtype, fill: float) -> Tensor:
    """One array per row as `[N, T]`, padded on the right with `fill`."""
    out = torch.full((len(arrays), max((len(a) for a in arrays), default=0)), fill, dtype=dtype)
    for i, array in enumerate(arrays):
        out[i, : len(array)] = torch.from_numpy(array)
    return out


def _thread_ids(row: Row) -> Ids:
    return np.zeros(len(row.response_ids), np.int32) if row.thread_ids is None else row.thread_ids


def _floats(arrays: Sequence[Floats] | None) -> Tensor | None:
    return None if arrays is None else padded(arrays, torch.float32, 0)


def _probed(arrays: Sequence[Floats] | None) -> Tensor | None:
    return None if arrays is None else padded(arrays, torch.float32, float("nan"))


def _parts(rows: Sequence[Row]) -> dict[str, Tensor]:
    names = sorted({name for row in rows for name in row.parts})
    return {name: torch.tensor([row.parts.get(name, float("nan")) for row in rows]) for name in names}


def _token_rewards(rows: Sequence[Row]) -> Tensor | None:
    if not any(row.token_rewards for row in rows):
        return None
    out = torch.zeros(len(rows), max(len(row.response_ids) for row in rows))
    for i, row in enumerate(rows):
        for position, value in row.token_rewards.items():
            out[i, position] += value
    return out


def _entropies(rows: Sequence[Row]) -> list[Floats] | None:
    """Return the engine's, if every row has them."""
    engine_entropies = [row.entropies for row in rows if row.entropies is not None]
    return engine_entropies if len(engine_entropies) == len(rows) else None


def _turn_rewards(rows: Sequence[Row]) -> Tensor | None:
    """`[N, turns]`, as many turns as the longest row has."""
    if not any(reward is not None for row in rows for reward in row.turn_rewards):
        return None
    turns = max(max(len(row.turn_rewards), int(row.turn_ids.max(initial=-1)) + 1) for row in rows)
    out = torch.full((len(rows), turns), float("nan"))
    for i, row in enumerate(rows):
        for turn, reward in enumerate(row.turn_rewards):
            out[i, turn] = float("nan") if reward is None else reward
    return out


def _state_ids(rows: Sequence[Row]) -> Tensor | None:
    """`[N, turns]`, as many turns as the longest row has; states of different groups have different numbers."""
    named = [_named_states(row) for row in rows]
    if not any(named):
        return None
    numbers: dict[tuple[int, str | bytes], int] = {}
    turns = max(max(len(row.state_keys), int(row.turn_ids.max(initial=-1)) + 1) for row in rows)
    out = torch.full((len(rows), turns), -1, dtype=torch.int64)
    for i, (row, states) in enumerate(zip(rows, named, strict=True)):
        for turn, key in states.items():
            out[i, turn] = numbers.setdefault((row.group, key), len(numbers))
    return out


def _named_states(row: Row) -> dict[int, str | bytes]:
    """Return states by turn. A first turn without a name began in the state that was shown (`begin`)."""
    first = int(row.mask.argmax()) if row.mask.any() else 0
    shown = first > 0 and row.turn_ids[first] == 0
    begun: dict[int, str | bytes] = {0: row.response_ids[:first].tobytes()} if shown else {}
    return begun | {turn: key for turn, key in enumerate(row.state_keys) if key is not None}
