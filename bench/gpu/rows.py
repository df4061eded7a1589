"""Rows to train on: random tokens, or what an engine sampled."""

from __future__ import annotations

import numpy as np

from ramet.engines.protocol import Completion
from ramet.policy.batching.rows import Row
from ramet.testing.batches import root_row


def random_rows(count: int, prompt: int, responses: list[int], vocab: int) -> list[Row]:
    """`count` rows; response lengths are taken from `responses` in turn."""
    rng = np.random.default_rng(1)
    rows = []
    for i in range(count):
        length = responses[i % len(responses)]
        ids = rng.integers(0, vocab, prompt + length).astype(np.int32)
        rows.append(_row(i, ids[:prompt], ids[prompt:], np.full(length, -np.log(vocab), np.float32)))
    return rows


def forked_rows(groups: int, rollouts: int, prompt: int, response: int, vocab: int) -> list[Row]:
    """Groups of rollouts with one prompt; every second one is a fork of the one before it, from the middle on."""
    rng = np.random.default_rng(1)
    rows: list[Row] = []
    for group in range(groups):
        ids = rng.integers(0, vocab, prompt).astype(np.int32)
        parent = np.zeros(0, np.int32)
        for i in range(rollouts):
            kept = parent[: response // 2] if i % 2 else parent[:0]
            parent = np.concatenate([kept, rng.integers(0, vocab, response - len(kept)).astype(np.int32)])
            logprobs = np.full(response, -np.log(vocab), np.float32)
            rows.append(root_row(ids, parent, logprobs=logprobs, id=str(len(rows)), group=group, reward=float(i % 2)))
    return rows


def sampled_rows(prompts: list[np.ndarray], completions: list[Completion]) -> list[Row]:
    return [
        _row(i, prompt, np.asarray(done.token_ids, np.int32), np.asarray(done.logprobs, np.float32))
        for i, (prompt, done) in enumerate(zip(prompts, completions, strict=True))
    ]


def _row(i: int, prompt: np.ndarray, response: np.ndarray, logprobs: np.ndarray) -> Row:
    return root_row(prompt, response, logprobs=logprobs, id=str(i), group=i // 2, reward=float(i % 2))
