"""What the driver gives to all policy ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from ramet.cluster.ray import policy
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch


def test_the_rows_of_a_step_are_put_into_the_object_store_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[Any] = []
    calls: list[tuple[Any, ...]] = []

    async def call(method: str, *arguments: Any) -> Any:
        calls.append((method, *arguments))
        return {} if method.startswith("update") else []

    async def learn(rows: Sequence[Row], batch: TrainBatch) -> None:
        ranks = policy.RayPolicy(pool, spec, None)
        monkeypatch.setattr(ranks, "_call_all", call)
        await ranks.logprobs(rows)
        await ranks.reference_logprobs(rows)
        await ranks.values(rows)
        await ranks.update_critic(batch, 1)
        await ranks.update(batch, 1)

    pool: Any = None
    spec: Any = None
    rows: Any = [object(), object()]
    batch = TrainBatch(rows=rows, advantages=[np.zeros(1, np.float32)] * 2)
    monkeypatch.setattr(policy.ray, "put", lambda value: stored.append(value) or f"ref {len(stored)}")
    asyncio.run(learn(rows, batch))
    assert stored == [rows, replace(batch, rows=())] and stored[0] is rows
    assert calls == [
        ("logprobs", "ref 1"),
        ("reference_logprobs", "ref 1"),
        ("values", "ref 1"),
        ("update_critic", "ref 2", "ref 1", 1),
        ("update", "ref 2", "ref 1", 1),
    ]
