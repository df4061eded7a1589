"""Rows written by hand, of rollouts with one turn and no fork: for tests and benches of what trains on rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramet.policy.batching.rows import Floats, Ids, Row
from ramet.types import StopReason


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
