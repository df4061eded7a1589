"""Two ranks train as one does: the same log-probabilities, gradients and weights."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from core.tests.policy.conftest import free_port
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from ramet.config.schema import Dtype, LossAggregation, ModelConfig, Offload, SharePrefixes
from ramet.errors import InfraError
from ramet.models.loading import DTYPES
from ramet.models.weight_files import WeightFiles
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.distributed.ranks import gather_on_first, join_ranks, require_ranks, sum_over_ranks
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec

MakeSpec = Callable[..., PolicySpec]
MakeRows = Callable[..., list[Row]]
MakeAdvantages = Callable[[list[Row]], Tensor]
OnRanks = Callable[..., list[Any]]
TIMED = ("train/update_s", "train/tokens_per_s")


def close_metrics(found: dict[str, float], expected: dict[str, float], tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name in found.keys() - set(TIMED):
        assert found[name] == pytest.approx(expected[name], rel=tolerance, abs=tolerance), name


def without_time(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in TIMED}


def close_weights(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare weights after steps of 1e-3. The softmax cancels most of the gradient of a bias of the keys: what is left
    is rounding, which Adam scales to whole steps, and rounding differs from processor to processor."""
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        atol = 1e-4 if name.endswith("k_proj.bias") else 1e-5
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def alone(spec: PolicySpec, rows: list[Row], advantages: Tensor, steps: int) -> tuple[list[Any], dict[str, Tensor]]:
    worker = PolicyRank(spec)
    batch = TrainBatch(rows=rows, ref_logprobs=[row.engine_logprobs for row in rows], kl_coef=0.1)
    batch = batch.with_advantages(advantages)
    metrics = [worker.update(batch, step) for step in range(1, steps + 1)]
    return metrics, {name: tensor.clone() for name, tensor in worker.weights()}


def test_numbers_are_added_up_and_values_reach_the_first_rank(ranks: OnRanks) -> None:
    assert ranks("exchange", [1.5, 2.25]) == [(3.75, [1.5, 2.25]), (3.75, None)]


def test_a_rank_that_reaches_no_other_gives_up_at_its_deadline() -> None:
    with pytest.raises(
        InfraError, match=r"policy rank 0 of 2 did not reach the others at tcp://127\.0\.0\.1:\d+ within 1 s"
    ):
        join_ranks(rank=0, world_size=2, address=f"tcp://127.0.0.1:{free_port()}", timeout_s=1)
    require_ranks(0, 1)
    join_ranks(rank=0, world_size=1, address=f"tcp://127.0.0.1:{free_port()}", timeout_s=20)
    try:
        with pytest.raises(RuntimeError, match="has joined 1 ranks already"):
            join_ranks(rank=0, world_size=1, address=f"tcp://127.0.0.1:{free_port()}", timeout_s=20)
        assert (sum_over_ranks(2.5), gather_on_first("a")) == (2.5, ["a"])
    finally:
        dist.destroy_process_group()


def test_sharded_ranks_score_with_a_teacher_as_one_rank_does(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, untied: Path
) -> None:
    rows = make_rows(5)
    spec = replace(make_spec(max_microbatch_tokens=20), teacher=ModelConfig(path=str(untied)))
    first, other = ranks("rescore", spec, rows)
    assert other == []
    for found, expected in zip(first, PolicyRank(spec).rescore(rows), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("n_rows", [7, 1])
def test_log_probabilities_come_back_whole_and_in_order(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, n_rows: int
) -> None:
    rows = make_rows(n_rows)
    spec = make_spec(kl_coef=0.1, max_microbatch_tokens=20)
    (logprobs, both, reference), other = ranks("score", spec, rows)
    assert other == ([], ([], []), [])
    worker = PolicyRank(spec)
    expected = worker.logprobs_and_entropies(rows)
    for found, wanted in ((logprobs, expected[0]), (both[0], expected[0]), (both[1], expected[1])):
        for left, right in zip(found, wanted, strict=True):
            np.testing.assert_allclose(left, right, atol=1e-5)
    for left, right in zip(reference, worker.reference_logprobs(rows), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


CASES: dict[str, dict[str, Any]] = {
    "one optimiser step": {},
    "minibatches and epochs": {"minibatches": 2, "epochs": 2, "kl_coef": 0.1, "entropy_coef": 0.01},
    "many micro-batches": {"max_microbatch_tokens": 25, "loss_aggregation": LossAggregation.SEQ_MEAN_TOKEN_MEAN},
    "activation checkpointing": {"activation_checkpointing": True, "minibatches": 2},
    "checkpointing of every second block": {"activation_checkpointing": 2, "max_microbatch_tokens": 25},
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_as_one(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, case: str
) -> None:
    rows = make_rows(9)
    spec = make_spec(**CASES[case])
    (found, weights, held), (nothing, _, rest) = ranks("train", spec, rows, make_advantages(rows), (1, 2, 3))
    expected, wanted = alone(spec, rows, make_advantages(rows), steps=3)
    for left, right in zip(found, expected, strict=True):
        close_metrics(left, right)
    assert nothing == [{}, {}, {}]
    close_weights(weights, wanted)
    total = sum(p.numel() for p in PolicyRank(spec).model.parameters())
    assert held + rest == total and held < 0.6 * total


def test_a_batch_that_ranks_took_by_groups_trains_as_the_batch_itself(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(8)
    spec = make_spec(minibatches=2, kl_coef=0.1, max_microbatch_tokens=25)
    (found, weights), (nothing, _) = ranks("train_taken", spec, rows, make_advantages(rows))
    worker = PolicyRank(spec)
    batch = TrainBatch(rows=rows, ref_logprobs=worker.reference_logprobs(rows), kl_coef=0.1)
    expected = worker.update(batch.with_advantages(make_advantages(rows)), 1)
    close_metrics(found, expected)
    assert nothing == {}
    close_weights(weights, dict(worker.weights()))


@pytest.mark.parametrize(
    "options",
    [{"activation_checkpointing": True}, {"activation_checkpointing": 2, "share_prefixes": SharePrefixes.ALWAYS}],
    ids=["checkpointing", "checkpointing of every second block, prefixes once"],
)
def test_compiled_blocks_train_on_two_ranks_as_one_rank_without(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, options: dict[str, Any]
) -> None:
    rows, spec = make_rows(5), make_spec(**options, compile=True, max_microbatch_tokens=25)
    [(found, weights, _), _] = ranks("train_compiled", spec, rows, make_advantages(rows), (1,))
    [expected], wanted = alone(make_spec(), rows, make_advantages(rows), steps=1)
    close_metrics(found[0], expected)
    close_weights(weights, wanted)


def test_fewer_rows_than_ranks_and_one_long_row_are_no_matter(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    """Minibatches of one row leave a rank without any; a long row and many short ones make uneven micro-batches."""
    long = make_rows(1, seed=3, longest=200)
    rows = [*make_rows(6, longest=8), *long]
    spec = make_spec(minibatches=4, max_microbatch_tokens=16)
    [(found, weights, _), _] = ranks("train", spec, rows, make_advantages(rows), (1, 2))
    expected, wanted = alone(spec, rows, make_advantages(rows), steps=2)
    for left, right in zip(found, expected, strict=True):
        close_metrics(left, right)
    close_weights(weights, wanted)
    [(found, weights, _), _] = ranks("train", spec, [], torch.zeros(0, 0), (1,))
    assert found[0]["train/optimizer_steps"] == found[0]["train/tokens"] == 0.0


def test_embeddings_are_one_tensor_where_the_head_is_tied_and_two_where_it_is_not(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, untied: Path
) -> None:
    rows = make_rows(6)
    for spec in (make_spec(minibatches=2), make_spec(model=ModelConfig(path=str(untied)), minibatches=2)):
        [(found, weights, _), _] = ranks("train", spec, rows, make_advantages(rows), (1, 2))
        expected, wanted = alone(spec, rows, make_advantages(rows), steps=2)
        close_metrics(found[-1], expected[-1])
        close_weights(weights, wanted)
        one = torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
        assert one == (spec.model.path != str(untied))


def test_bfloat16_is_close_to_float32_and_keeps_float32_weights(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tiny: Path
) -> None:
    rows = make_rows(6)
    spec = make_spec(model=ModelConfig(path=str(tiny), dtype=Dtype.BFLOAT16), kl_coef=0.1)
    [(found, weights, _), _] = ranks("train", spec, rows, make_advantages(rows), (1,))
    expected, _ = alone(make_spec(kl_coef=0.1), rows, make_advantages(rows), steps=1)
    for name in ("grad_norm", "entropy", "engine_gap_mean"):
        assert found[0][f"train/{name}"] == pytest.approx(expected[0][f"train/{name}"], rel=0.02), name
    assert found[0]["train/kl_reference"] == pytest.approx(expected[0]["train/kl_reference"], rel=0.05)
    assert all(tensor.dtype is torch.float32 for tensor in weights.values())
    (logprobs, _, _), _ = ranks("score", spec, rows)
    for left, right in zip(logprobs, PolicyRank(make_spec()).logprobs(rows), strict=True):
        np.testing.assert_allclose(left, right, atol=0.05)


def test_sequences_can_be_shared_by_neighbours(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(5)
    options = {"minibatches": 2, "epochs": 2, "kl_coef": 0.1, "activation_checkpointing": True}
    spec = make_spec(**options, sequence_parallel=2, max_microbatch_tokens=20)
    [(found, weights, _), _] = ranks("train", spec, rows, make_advantages(rows), (1, 2))
    expected, wanted = alone(make_spec(**options), rows, make_advantages(rows), steps=2)
    for left, right in zip(found, expected, strict=True):
        close_metrics(left, right)
    close_weights(weights, wanted)
    (logprobs, _, _), _ = ranks("score", spec, rows)
    for left, right in zip(logprobs, PolicyRank(make_spec()).logprobs(rows), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


@pytest.mark.parametrize(("sequence_parallel", "given"), [(2, [[0, 1, 2, 3, 4]] * 2), (1, None)])
def test_a_loss_is_given_whole_sequences(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, sequence_parallel: int, given: list[list[int]] | None
) -> None:
    rows = make_rows(5)
    advantages = torch.arange(1.0, 6.0)[:, None].expand(5, max(len(row.response_ids) for row in rows))
    spec = make_spec(sequence_parallel=sequence_parallel, max_microbatch_tokens=20)
    found = ranks("whole_sequences", spec, rows, advantages.contiguous())
    if given is None:  # every row on one of the two
        assert sorted(found[0] + found[1]) == [0, 1, 2, 3, 4] and all(found)
    else:
        assert found == given


@pytest.mark.parametrize("sequence_parallel", [1, 2])
@pytest.mark.parametrize("left", [(), (3,)], ids=["nobody", "one rank"])
def test_rows_without_signal_are_skipped_by_all_ranks_alike(
    ranks: OnRanks,
    make_spec: MakeSpec,
    make_rows: MakeRows,
    make_advantages: MakeAdvantages,
    sequence_parallel: int,
    left: tuple[int, ...],
) -> None:
    """In the second step at most one row is computed, by one rank; the other makes empty passes."""
    rows = make_rows(6)
    advantages = torch.zeros_like(make_advantages(rows))
    advantages[list(left)] = make_advantages(rows)[list(left)]
    spec = make_spec(minibatches=2, weight_decay=0.1, sequence_parallel=sequence_parallel, max_microbatch_tokens=20)
    [(found, weights, _), _] = ranks("train", spec, rows, advantages, (1, 2))
    [(expected, wanted, _), _] = ranks("train_with_every_row", spec, rows, advantages, (1, 2))
    for name in ("train/loss", "train/grad_norm", "train/tokens", "train/rows_without_signal"):
        assert found[-1][name] == pytest.approx(expected[-1][name], rel=1e-5, abs=1e-7), name
    assert found[-1]["train/rows_without_signal"] == 6 - len(left)
    assert left or all(torch.equal(weights[name], wanted[name]) for name in wanted)
    close_weights(weights, wanted)


def test_adapters_are_trained_alone_and_weights_come_merged(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    rows = make_rows(6)
    spec = make_spec(lora_rank=4, minibatches=2, lr=1e-2)
    [(found, weights, _), _] = ranks("train", spec, rows, make_advantages(rows), (1, 2))
    expected, wanted = alone(spec, rows, make_advantages(rows), steps=2)
    close_metrics(found[-1], expected[-1])
    close_weights(weights, wanted)
    before = dict(PolicyRank(make_spec()).weights())
    assert weights.keys() == before.keys()
    moved = {name for name in weights if not torch.equal(weights[name], before[name])}
    assert moved == {name for name in before if "proj.weight" in name}
    bf16 = make_spec(lora_rank=4, model=ModelConfig(path=spec.model.path, dtype=Dtype.BFLOAT16))
    [(found, _, _), _] = ranks("train", bf16, rows, make_advantages(rows), (1,))
    assert found[0]["train/optimizer_steps"] == 1.0


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_not_a_number_on_one_rank_is_skipped_by_both(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, rank: int
) -> None:
    rows = make_rows(4)
    first, second = ranks("break_on", rank, make_spec(), rows, make_advantages(rows))
    skipped = [metrics["train/skipped_updates"] for metrics, _, _ in first]
    assert skipped == [0.0, 1.0, 0.0]
    assert [bad for _, _, bad in first] == [bad for _, _, bad in second] == [0, 1, 0]
    weights = [found for _, found, _ in first]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert any(not torch.equal(weights[1][name], weights[2][name]) for name in weights[0])
    assert all(tensor.isfinite().all() for tensor in weights[2].values())


def test_training_diverges_on_all_ranks(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(4)
    first, second = ranks("diverge", 1, make_spec(epochs=3), rows, make_advantages(rows))
    assert first == second and first.startswith("TrainingDiverged: step 1: loss nan")


def test_what_two_ranks_cannot_do_is_refused(ranks: OnRanks, make_spec: MakeSpec) -> None:
    assert all(
        "policy.offload=all: moves GPU memory" in text for text in ranks("construct", make_spec(offload=Offload.ALL))
    )
    assert all(
        "policy_workers=2 is not a multiple" in text for text in ranks("construct", make_spec(sequence_parallel=3))
    )


def test_two_ranks_export_the_folder_that_one_would(
    ranks: OnRanks,
    make_spec: MakeSpec,
    make_rows: MakeRows,
    make_advantages: MakeAdvantages,
    tiny: Path,
    tmp_path: Path,
) -> None:
    rows = make_rows(4)
    config = ModelConfig(path=str(tiny), dtype=Dtype.BFLOAT16)
    weights, _ = ranks("export", make_spec(model=config), rows, make_advantages(rows), tmp_path / "hf")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert again.dtype is torch.bfloat16
    assert all(torch.equal(weights[name].bfloat16(), tensor) for name, tensor in again.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path / "hf").eos_token


@pytest.mark.parametrize("in_thread", [False, True], ids=["while_all_wait", "in_a_thread"])
def test_two_ranks_save_and_two_or_one_go_on_with_the_same_numbers(
    ranks: OnRanks,
    make_spec: MakeSpec,
    make_rows: MakeRows,
    make_advantages: MakeAdvantages,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    in_thread: bool,
) -> None:
    rows = make_rows(6)
    spec, folder = make_spec(minibatches=2), tmp_path / "policy"
    arguments = (spec, rows, make_advantages(rows), folder)
    (expected, wanted, drawn), (_, _, other) = ranks("save", *arguments, in_thread=in_thread)
    (found, weights, again), (_, _, others) = ranks("resume", *arguments)
    assert [without_time(m) for m in found] == [without_time(m) for m in expected]
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    assert (again, others) == (drawn, other) and drawn != other
    worker = PolicyRank(spec)
    with caplog.at_level(logging.INFO, logger="ramet"):
        worker.load(folder)
    assert "written by 2 policy ranks" in caplog.text
    for step, metrics in zip((3, 4), expected, strict=True):
        close_metrics(worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), step), metrics)
    close_weights(dict(worker.weights()), wanted)


def test_one_rank_saves_and_two_go_on(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tmp_path: Path
) -> None:
    rows = make_rows(6)
    spec = make_spec(minibatches=2)
    worker = PolicyRank(spec)
    for step in (1, 2):
        worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), step)
    worker.stage()
    worker.write_staged(tmp_path)
    (found, weights, _), _ = ranks("resume", spec, rows, make_advantages(rows), tmp_path)
    for step, metrics in zip((3, 4), found, strict=True):
        close_metrics(metrics, worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), step))
    close_weights(weights, dict(worker.weights()))


@pytest.mark.parametrize("taken", ["rank_00001.pt", "__1_0.distcp", ""], ids=["own_file", "tensors", "folder"])
def test_what_one_rank_cannot_write_is_one_error_on_all_ranks(
    ranks: OnRanks, make_spec: MakeSpec, tmp_path: Path, taken: str
) -> None:
    """Otherwise the critic's ranks, which write next, would wait for the one that gave up."""
    folder = tmp_path / "policy"
    if taken:
        (folder / taken / "something").mkdir(parents=True)
    else:
        folder.write_text("a file")
    first, second = ranks("save_fails", make_spec(), folder)
    assert first == second
    assert first.startswith(f"CheckpointError: {folder}: could not write the policy: {folder / taken}: ")


def test_a_broken_file_is_one_error_on_all_ranks(
    ranks: OnRanks, make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tmp_path: Path
) -> None:
    rows = make_rows(4)
    ranks("save", make_spec(), rows, make_advantages(rows), tmp_path, in_thread=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".hashes_00000", ".hashes_00001", ".metadata",
        "__0_0.distcp", "__1_0.distcp", "rank_00000.pt", "rank_00001.pt",
    ]  # fmt: skip
    for name in ("__1_0.distcp", "rank_00001.pt", ".metadata"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        for text in ranks("load_fails", make_spec(), tmp_path):
            assert text.startswith(f"CheckpointError: {tmp_path}: could not read the policy: ")
            assert text.endswith("(at once)"), text
        (tmp_path / name).write_bytes(whole)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
@pytest.mark.parametrize("tied", [True, False])
def test_ranks_read_their_own_rows_of_the_files(
    ranks: OnRanks, make_spec: MakeSpec, tiny: Path, untied: Path, tied: bool, dtype: Dtype
) -> None:
    model = ModelConfig(path=str(tiny if tied else untied), dtype=dtype)
    files = dict(WeightFiles(Path(model.path)))
    (weights, first), (_, second) = ranks("read_parts", make_spec(model=model))
    for name, tensor in files.items():
        assert torch.equal(weights[name], tensor.to(DTYPES[dtype]).float()), name
    head = weights["lm_head.weight"]
    assert torch.equal(head, weights["model.embed_tokens.weight"]) == tied
    assert first + second == sum(tensor.numel() for tensor in files.values())
    assert 0.9 < first / second < 1.2


def test_adapters_and_the_critics_head_are_no_part_of_the_files(
    ranks: OnRanks, make_spec: MakeSpec, tiny: Path
) -> None:
    pytest.importorskip("peft")
    spec = make_spec(lora_rank=2)
    [(weights, _), _] = ranks("read_parts", spec)
    expected = PolicyRank(spec).model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    [(weights, _), _] = ranks("read_parts", make_spec(), critic=True)
    body = {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    assert not weights["lm_head.weight"].any() and weights["lm_head.weight"].shape == (1, 32)
    files = dict(WeightFiles(tiny))
    assert all(torch.equal(tensor, files[name]) for name, tensor in body.items())


def test_files_that_are_no_safetensors_are_loaded_whole(
    ranks: OnRanks, make_spec: MakeSpec, tiny: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    tensors = dict(WeightFiles(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    [weights, _] = ranks("whole_model", make_spec(model=ModelConfig(path=str(tmp_path))))
    assert all(torch.equal(weights[name], tensor) for name, tensor in tensors.items())
