"""Four ranks as replicas that shard the weights train as four that shard them together, and as one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from core.tests.policy.test_ranks import close_metrics, close_weights, without_time
from torch import Tensor

from ramet.config.schema import ClusterConfig, Config
from ramet.models.weight_files import WeightFiles
from ramet.planning.memory_policy import TrainedModel, state
from ramet.planning.model_shape import read_shape
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.checkpoint.dcp import read_contents, shapes
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.types import CriticOptions

MakeSpec = Callable[..., PolicySpec]
MakeRows = Callable[..., list[Row]]
MakeAdvantages = Callable[[list[Row]], Tensor]
OnRanks = Callable[..., list[Any]]
TASKS = "sharding_ranks.py"
MANY_PASSES = {"minibatches": 2, "kl_coef": 0.1, "max_microbatch_tokens": 25, "activation_checkpointing": True}
CASES: dict[str, dict[str, Any]] = {
    "one replica": {"replicas": 1, **MANY_PASSES},
    "two replicas": {"replicas": 2, **MANY_PASSES},
    "each rank a replica": {"replicas": 4, **MANY_PASSES},
    "two replicas of ranks that share sequences": {"replicas": 2, "sequence_parallel": 2, "max_microbatch_tokens": 20},
    "two replicas with adapters": {"replicas": 2, "lora_rank": 4, "minibatches": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_replicas_train_as_one_rank_and_hold_what_the_plan_says(
    four_ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, case: str
) -> None:
    """Metrics include the norm of the gradients, in which no replica may count twice."""
    options = CASES[case]
    if "lora_rank" in options:
        pytest.importorskip("peft")
    rows, spec = make_rows(9), make_spec(**options)
    found = four_ranks("train_replicas", spec, rows, make_advantages(rows), (1, 2), file=TASKS)
    metrics, weights, _, held = found[0]
    worker = PolicyRank(make_spec(**{**options, "replicas": 1, "sequence_parallel": 1}))
    reference = [row.engine_logprobs for row in rows]
    batch = TrainBatch(rows=rows, ref_logprobs=reference, kl_coef=0.1).with_advantages(make_advantages(rows))
    expected = [worker.update(batch, step) for step in (1, 2)]
    for left, right in zip(metrics, expected, strict=True):
        close_metrics(left, right)
    assert [others for others, *_ in found[1:]] == [[{}, {}]] * 3
    close_weights(weights, dict(worker.engine_weights()))
    digests, shards = [digest for _, _, digest, _ in found], 4 // spec.policy.replicas
    assert digests == digests[:shards] * spec.policy.replicas and len(set(digests)) == shards
    config = Config(model=spec.model, policy=spec.policy, cluster=ClusterConfig(name="ray", policy_workers=4))
    assert state(TrainedModel(shape=read_shape(spec.model), config=config, ranks=4, cuda=False)) == held


def test_replicas_are_neighbours(four_ranks: OnRanks) -> None:
    assert four_ranks("groups_of_this_rank", 2, file=TASKS) == [
        [[0, 2], [0, 1]], [[1, 3], [0, 1]], [[0, 2], [2, 3]], [[1, 3], [2, 3]],
    ]  # fmt: skip


def test_replicas_save_each_shard_once_and_go_on_with_the_same_numbers(
    four_ranks: OnRanks,
    make_spec: MakeSpec,
    make_rows: MakeRows,
    make_advantages: MakeAdvantages,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows, spec = make_rows(6), make_spec(minibatches=2, replicas=2)
    arguments = (spec, rows, make_advantages(rows), tmp_path)
    saved = four_ranks("save", *arguments, in_thread=True)
    resumed = four_ranks("resume", *arguments)
    expected, wanted, _ = saved[0]
    metrics, weights, _ = resumed[0]
    assert [without_time(m) for m in metrics] == [without_time(m) for m in expected]
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    drawn = [number for _, _, number in saved]
    assert drawn == [number for _, _, number in resumed] and len(set(drawn)) == 4

    written = read_contents(tmp_path)
    pieces = [piece for entry in shapes(tmp_path).values() for piece in entry.chunks if entry.size]
    weights_of_file = sum(tensor.numel() for _, tensor in WeightFiles(Path(spec.model.path)))
    assert sum(piece.sizes.numel() for piece in pieces) == 3 * weights_of_file  # with two moments of each
    lengths = [info.length for info in written.storage_data.values()]
    assert sum(lengths) == sum(file.stat().st_size for file in tmp_path.glob("*.distcp"))
    assert len(list(tmp_path.glob(".hashes_*"))) == 4

    together = make_spec(minibatches=2, replicas=1)
    (metrics, weights, _), *_ = four_ranks("resume", together, *arguments[1:])
    alone = PolicyRank(make_spec(minibatches=2))
    with caplog.at_level(logging.INFO, logger="ramet"):
        alone.load(tmp_path)
    assert "written by 4 policy ranks" in caplog.text
    for step, left, right in zip((3, 4), metrics, expected, strict=True):
        close_metrics(left, right)
        close_metrics(alone.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), step), right)
    close_weights(weights, wanted)
    close_weights(dict(alone.weights()), wanted)


def test_every_replica_reads_the_whole_of_the_files_once(four_ranks: OnRanks, make_spec: MakeSpec, tiny: Path) -> None:
    found = four_ranks("read_parts", make_spec(replicas=2))
    files = dict(WeightFiles(tiny))
    assert all(torch.equal(weights[name], tensor) for weights, _ in found for name, tensor in files.items())
    read = [numbers for _, numbers in found]
    assert read[:2] == read[2:] and sum(read[:2]) == sum(tensor.numel() for tensor in files.values())


def test_a_critic_of_replicas_learns_as_one_rank_does(
    four_ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, tmp_path: Path
) -> None:
    rows = make_rows(7)
    returns = torch.zeros(len(rows), max(len(row.response_ids) for row in rows))
    for i, row in enumerate(rows):
        returns[i, : len(row.mask)] = torch.from_numpy(row.mask).float() * (i % 3)
    spec = make_spec(replicas=2, max_microbatch_tokens=40)
    critic = CriticSpec(
        model=spec.model, policy=spec.policy, train=spec.train, options=CriticOptions(lr=1e-3), total_steps=10, seed=1
    )
    (_, values), *others = four_ranks("train_critic", spec, critic, rows, returns, tmp_path, file="critic_ranks.py")
    assert others == [({}, [])] * 3
    alone = PolicyRank(make_spec(max_microbatch_tokens=40), replace(critic, policy=replace(critic.policy, replicas=1)))
    expected: list[Any] = []
    for step in (1, 2, 3):
        before = alone.values(rows)
        alone.update_critic(
            TrainBatch(rows=rows, values=before).with_advantages(torch.zeros_like(returns), returns=returns), step
        )
        expected = alone.values(rows)
    for left, right in zip(values, expected, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)


def test_what_four_ranks_cannot_do_is_refused_by_each(four_ranks: OnRanks, make_spec: MakeSpec) -> None:
    wrong = "policy.replicas=3: each copy of the weights is sharded over as many of the cluster.policy_workers=4 ranks"
    assert four_ranks("construct", make_spec(replicas=3)) == [f"{wrong}; allowed: 1, 2, 4"] * 4
