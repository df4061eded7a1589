"""Training with prefixes computed once is training: the same numbers, of fewer tokens; and who goes with whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ramet.config.schema import (
    LossAggregation,
    MinibatchOf,
    ModelConfig,
    PolicyConfig,
    SharePrefixes,
    TrainConfig,
)
from ramet.errors import ConfigErrors
from ramet.policy.batching.packing import model_cost
from ramet.policy.batching.partition import RankLayout, drawn_rows, own_shared_micro_batches
from ramet.policy.batching.rows import Row
from ramet.policy.batching.shared import group_tries, groups_of, trees, unique_token_share
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.shared_attention import has_shared_attention
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.types import CriticOptions

MakeSpec = Callable[..., PolicySpec]
MakeRows = Callable[..., list[Row]]
MakeAdvantages = Callable[[list[Row]], Tensor]
COST = model_cost(32, torch.device("cpu"))
ALWAYS, NEVER = SharePrefixes.ALWAYS, SharePrefixes.NEVER
CASES: dict[str, dict[str, Any]] = {
    "one optimiser step": {},
    "reference, entropy and several epochs": {"kl_coef": 0.1, "entropy_coef": 0.01, "epochs": 2},
    "groups are mini-batches": {"minibatches": 2, "minibatch_of": MinibatchOf.GROUPS},
    "rollouts are mini-batches": {"minibatches": 3, "minibatch_of": MinibatchOf.ROLLOUTS},
    "trees that are cut": {"max_microbatch_tokens": 25, "loss_aggregation": LossAggregation.SEQ_MEAN_TOKEN_MEAN},
    "activation checkpointing": {"activation_checkpointing": True},
    "adapters": {"lora_rank": 4, "lr": 1e-2},
}


def trained(spec: PolicySpec, rows: list[Row], advantages: Tensor) -> tuple[list[dict[str, float]], Tensor]:
    worker = PolicyRank(spec)
    batch = TrainBatch(rows=rows, ref_logprobs=[row.engine_logprobs for row in rows], kl_coef=0.1)
    batch = batch.with_advantages(advantages)
    metrics = [worker.update(batch, step) for step in (1, 2)]
    return metrics, torch.cat([tensor.flatten().clone() for _, tensor in worker.weights()])


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_the_same(
    make_spec: MakeSpec, make_tree_rows: MakeRows, make_advantages: MakeAdvantages, case: str
) -> None:
    if "lora_rank" in CASES[case]:
        pytest.importorskip("peft")
    rows = make_tree_rows(3)
    found, weights = trained(make_spec(**CASES[case], share_prefixes=ALWAYS), rows, make_advantages(rows))
    expected, wanted = trained(make_spec(**CASES[case], share_prefixes=NEVER), rows, make_advantages(rows))
    for left, right in zip(found, expected, strict=True):
        assert left.keys() == right.keys()
        for name in left.keys() - {"train/update_s", "train/tokens_per_s"}:
            assert left[name] == pytest.approx(right[name], rel=1e-5, abs=2e-5), name
    torch.testing.assert_close(weights, wanted, rtol=0, atol=2e-5)


def test_a_share_is_reported_and_auto_follows_it(
    make_spec: MakeSpec, make_tree_rows: MakeRows, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    worker = PolicyRank(make_spec())
    for rows, shares in ((make_tree_rows(3), True), (make_rows(6), False)):
        metrics = worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
        assert metrics["train/unique_token_share"] == unique_token_share(rows)
        assert (unique_token_share(rows) < 0.85) is shares
        fed = sum(batch.n_tokens for batch in worker.policy.micro_batches(rows))
        assert fed == round(unique_token_share(rows) * sum(row.n_tokens - 1 for row in rows))
    assert worker.update(TrainBatch(rows=[]).with_advantages(torch.zeros(0, 0)), 2)["train/unique_token_share"] == 1.0


def test_never_leaves_the_model_and_the_layouts_alone(make_spec: MakeSpec, make_tree_rows: MakeRows) -> None:
    worker = PolicyRank(make_spec(share_prefixes=NEVER))
    assert not has_shared_attention(worker.model.config)
    assert all(batch.attention is None for batch in worker.policy.micro_batches(make_tree_rows(3)))


def test_a_model_that_cannot_share_is_refused(make_spec: MakeSpec, tiny: Path) -> None:
    eager = ModelConfig(path=str(tiny), attention="eager")
    with pytest.raises(ConfigErrors, match=r"policy\.share_prefixes=always: .* model\.attention=eager; "):
        PolicyRank(make_spec(model=eager, share_prefixes=ALWAYS))
    assert not has_shared_attention(PolicyRank(make_spec(model=eager)).model.config)


def test_a_critic_learns_the_same(make_spec: MakeSpec, make_tree_rows: MakeRows, tiny: Path) -> None:
    rows = make_tree_rows(3)
    returns = torch.zeros(len(rows), max(len(row.response_ids) for row in rows)) + torch.arange(len(rows))[:, None]
    found = []
    for share in (ALWAYS, NEVER):
        spec = CriticSpec(
            model=ModelConfig(path=str(tiny)),
            policy=PolicyConfig(share_prefixes=share),
            train=TrainConfig(),
            options=CriticOptions(lr=1e-2, value_clip=0.2),
            total_steps=4,
            seed=1,
        )
        worker = PolicyRank(make_spec(share_prefixes=share), spec)
        for step in (1, 2):
            batch = TrainBatch(rows=rows, values=worker.values(rows)).with_advantages(returns, returns=returns)
            metrics = worker.update_critic(batch, step)
        found.append((metrics, worker.values(rows)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4, abs=1e-6)
    for left, right in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)


def test_whole_groups_are_drawn_where_there_are_enough(make_tree_rows: MakeRows) -> None:
    rows = make_tree_rows(4)
    for minibatches in (1, 2, 4):
        train = TrainConfig(minibatches=minibatches, epochs=2)
        order = drawn_rows(TrainBatch(rows=rows), train, seed=1, step=3, whole_groups=True)
        assert len(order) == 2 * minibatches
        groups = groups_of(rows)
        for chosen in order:
            assert all(set(group) <= set(chosen) or not set(group) & set(chosen) for group in groups)
        assert sorted(chain(*order[:minibatches])) == list(range(len(rows)))
    many = TrainConfig(minibatches=8)
    assert drawn_rows(TrainBatch(rows=rows), many, seed=1, step=3, whole_groups=True) == drawn_rows(
        TrainBatch(rows=rows), many, seed=1, step=3, whole_groups=False
    )


@pytest.mark.parametrize("budget", [20, 60, 4096])
@pytest.mark.parametrize("n_groups", [1, 3, 8])
def test_ranks_have_all_rows_once_in_as_many_passes(make_tree_rows: MakeRows, n_groups: int, budget: int) -> None:
    rows = make_tree_rows(n_groups)
    layouts = [RankLayout(rank=rank, world_size=4, sequence_parallel=2) for rank in range(4)]
    found = [own_shared_micro_batches(rows, layout, budget=budget, cost=COST) for layout in layouts]
    assert len({len(batches) for batches in found}) == 1
    passed = [[i for batch in batches for i in batch.rows] for batches in found]
    assert passed[0] == passed[1] and passed[2] == passed[3]
    assert sorted(passed[0] + passed[2]) == list(range(len(rows)))
    longest = max(row.n_tokens - 1 for row in rows)
    assert all(batch.n_tokens <= max(budget, longest) for batches in found for batch in batches)


def test_a_group_is_one_tree_and_costs_its_unique_tokens(make_tree_rows: MakeRows) -> None:
    rows = make_tree_rows(2)
    found = trees(group_tries(rows), budget=4096, cost=COST)
    assert [tree.rows for tree in found] == [tuple(group) for group in groups_of(rows)]
    assert sum(tree.n_tokens for tree in found) / sum(row.n_tokens - 1 for row in rows) == unique_token_share(rows)
    alone = trees(group_tries(rows[:1]), budget=4096, cost=COST)[0]
    assert alone.cost == COST.packed([rows[0].n_tokens - 1])
    copies = [replace(rows[0], rollout_id=str(i)) for i in range(5)]
    assert trees(group_tries(copies), budget=4096, cost=COST)[0].cost == alone.cost
