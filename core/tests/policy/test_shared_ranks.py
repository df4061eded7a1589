"""Two ranks that compute every prefix once find what one rank finds that computes each as often as it occurs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ramet.config.schema import SharePrefixes
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec

CASES: dict[str, dict[str, Any]] = {
    "FSDP": {"kl_coef": 0.1, "max_microbatch_tokens": 40},
    "FSDP with activation checkpointing and adapters": {"activation_checkpointing": True, "lora_rank": 4},
    "Ulysses": {"sequence_parallel": 2, "max_microbatch_tokens": 25, "activation_checkpointing": True},
    "Ulysses with one micro-batch": {"sequence_parallel": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_as_one(
    ranks: Callable[..., list[Any]],
    make_spec: Callable[..., PolicySpec],
    make_tree_rows: Callable[..., list[Row]],
    make_advantages: Callable[[list[Row]], Tensor],
    case: str,
) -> None:
    if "lora_rank" in CASES[case]:
        pytest.importorskip("peft")
    rows = make_tree_rows(3)
    advantages = make_advantages(rows)
    options = {"minibatches": 2, "entropy_coef": 0.01, **CASES[case]}
    always = make_spec(**options, share_prefixes=SharePrefixes.ALWAYS, minibatch_of="rollouts")
    (found, weights, _), (nothing, _, _) = ranks("train", always, rows, advantages, (1, 2))
    alone = {name: value for name, value in options.items() if name != "sequence_parallel"}
    worker = PolicyRank(make_spec(**alone, share_prefixes=SharePrefixes.NEVER))
    batch = TrainBatch(rows=rows, ref_logprobs=[row.engine_logprobs for row in rows], kl_coef=0.1)
    batch = batch.with_advantages(advantages)
    expected = [worker.update(batch, step) for step in (1, 2)]
    assert nothing == [{}, {}]
    for left, right in zip(found, expected, strict=True):
        assert left.keys() == right.keys()
        for name in left.keys() - {"train/update_s", "train/tokens_per_s"}:
            assert left[name] == pytest.approx(right[name], rel=1e-5, abs=1e-5), name
    for name, tensor in worker.weights():
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
