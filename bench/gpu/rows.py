"""Rows to train on: random tokens, or what an engine sampled."""

from __future__ import annotations

import numpy as np

from ramet.engines.protocol import Completion
from ramet.policy.batching.rows import Row
from ramet.types import StopReason


def random_rows(count: int, prompt: int, responses: list[int], vocab: int) -> list[Row]:
    """`count` rows; response lengths are taken from `responses` in turn."""
    rng = np.random.default_rng(1)
    rows = []
    for i in range(count):
        length = responses[i % len(responses)]
        ids = rng.integers(0, vocab, prompt + length).astype(np.int32)
        rows.append(_row(i, ids[:prompt], ids[prompt:], np.full(length, -np.log(vocab), np.float32)))
    return rows


def sampled_rows(prompts: list[np.ndarray], completions: list[Completion]) -> list[Row]:
    return [
        _row(i, prompt, np.asarray(done.token_ids, np.int32), np.asarray(done.logprobs, np.float32))
        for i, (prompt, done) in enumerate(zip(prompts, completions, strict=True))
    ]


def _row(i: int, prompt: np.ndarray, response: np.ndarray, logprobs: np.ndarray) -> Row:
    n = len(response)
    return Row(
        rollout_id=str(i), task_id=str(i // 2), prompt_ids=prompt, response_ids=response, mask=np.ones(n, np.bool_),
        engine_logprobs=logprobs, entropies=None, turn_ids=np.zeros(n, np.int32),
        node_ids=np.arange(n, dtype=np.int32), policy_versions=np.zeros(n, np.int32), group=i // 2, parent=-1,
        fork_position=0, stop=StopReason.END, n_tool_calls=0, reward=float(i % 2), parts={}, token_rewards={},
    )  # fmt: skip
