"""`ramet sft` as every one of two ranks that torchrun starts, over all strategies on the CPU, with the real DeepSpeed.

One launch of torchrun trains with all of them (`torchrun_rank.py`), since the imports of its ranks take longest.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ramet.config.schema import Strategy
from ramet.export.job import export_adapter, export_run
from ramet.planning.memory_sft import SftInputs, sft_state
from ramet.sft.checkpoints import SftLayout, newest_complete, step_of
from ramet.tracking.jsonl import read_metrics

DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
PEFT = importlib.util.find_spec("peft") is not None
LORA = "sft.lora_rank=4"
# Steps become larger and do harm, so that the best model is not the last.
MEASURED = ["sft.valid_share=0.2", "sft.trainer.eval_steps=4", "sft.trainer.max_steps=16", "sft.trainer.warmup_ratio=1"]
HELD_OUT = {"fsdp": [*MEASURED, LORA, "sft.lr=0.1"], "zero3": [*MEASURED, "sft.lr=10"]}
LORA_STRATEGIES = ["fsdp"] * PEFT + ["zero2", "zero3"] * (PEFT and DEEPSPEED)
needs_deepspeed = pytest.mark.skipif(not DEEPSPEED, reason="ramet[deepspeed] is not installed")
needs_peft = pytest.mark.skipif(not PEFT, reason="ramet[lora] is not installed")
ZERO = [pytest.param(name, marks=needs_deepspeed) for name in ("zero0", "zero2", "zero3")]


@pytest.fixture(scope="module")
def trained(sft_arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs, by strategy; `killed` is zero3 again, killed after its first checkpoint and resumed."""

    def training(strategy: str, name: str) -> list[str]:
        few = ["sft.max_tokens=64", "sft.max_microbatch_tokens=64"]
        return [*sft_arguments, *few, f"run.name={name}", f"sft.strategy={strategy}", "cluster.policy_workers=2"]

    trainings: list[tuple[list[str], int | None]] = [(training("fsdp", "fsdp"), None)]
    if DEEPSPEED:
        trainings += [(training(name, name), None) for name in ("zero0", "zero2", "zero3")]
        trainings += [(training("zero3", "killed"), 8), (training("zero3", "killed"), None)]
    for strategy in ["fsdp"] * PEFT + ["zero3"] * DEEPSPEED:
        trainings.append(([*training(strategy, f"held_out_{strategy}"), *HELD_OUT[strategy]], None))
    for strategy in LORA_STRATEGIES:  # one is killed after its first checkpoint, and resumed
        with_lora = [*training(strategy, f"lora_{strategy}"), LORA]
        trainings += [(with_lora, 8)] * (strategy == "zero3") + [(with_lora, None)]
    file = tmp_path_factory.mktemp("trainings") / "trainings.json"
    file.write_text(json.dumps(trainings))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(Path(__file__).with_name("torchrun_rank.py")), str(file)]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600, check=True)
    root = next(text for text in sft_arguments if text.startswith("run.root=")).partition("=")[2]
    return Path(root)


def check_model(run: Path, one_rank: Path) -> None:
    assert (run / "model/config.json").read_text() == (one_rank / "model/config.json").read_text()
    theirs, ours = (load_file(folder / "model/model.safetensors") for folder in (one_rank, run))
    assert list(theirs) == list(ours)
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, atol=2e-4, rtol=0)


def check_held(run: Path, inputs: SftInputs) -> None:
    """To the byte, but for a few elements that DeepSpeed pads. ZeRO-2 frees gradients before the optimiser is done."""
    for rank in range(2):
        held, planned = json.loads((run / f"held_{rank}.json").read_text()), sft_state(inputs)
        names = ["weights", "optimiser"] if inputs.strategy is Strategy.ZERO2 else list(planned)
        assert {name: held[name] for name in names} == pytest.approx({name: planned[name] for name in names}, rel=1e-3)


def test_two_ranks_of_fsdp_train_as_one_and_hold_what_the_plan_says_to_the_byte(
    trained: Path, one_rank: Path, losses: Any, sft_inputs: Callable[..., SftInputs]
) -> None:
    run = trained / "fsdp"
    assert losses(run) == pytest.approx(losses(one_rank), abs=1e-5)
    assert json.loads((run / "held_0.json").read_text()) == sft_state(sft_inputs("fsdp"))


@pytest.mark.parametrize("strategy", ZERO)
def test_two_ranks_train_as_one_and_hold_what_the_plan_says(
    strategy: str, trained: Path, one_rank: Path, losses: Any, sft_inputs: Callable[..., SftInputs]
) -> None:
    run = trained / strategy
    assert losses(run) == pytest.approx(losses(one_rank), abs=1e-4)
    check_model(run, one_rank)
    check_held(run, sft_inputs(strategy))


@pytest.mark.parametrize("strategy", ZERO)
def test_a_checkpoint_with_a_missing_or_broken_file_is_passed_over(
    strategy: str, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained / strategy / "checkpoints", tmp_path / "checkpoints")
    layout, newest = SftLayout(strategy=Strategy(strategy), workers=2), tmp_path / "checkpoints" / "checkpoint-16"
    assert newest_complete(tmp_path / "checkpoints", layout) == newest
    files = [newest / "latest", newest / "rng_state_1.pth", *sorted(newest.glob("global_step16/*"))]
    if strategy == "zero3":
        assert len(files) == 6
    for file in files:
        content = file.read_bytes()
        for wrong in (content[: len(content) // 2], None):
            file.unlink() if wrong is None else file.write_bytes(wrong)
            assert step_of(newest_complete(tmp_path / "checkpoints", layout)) == 8, (file, wrong is None)
        file.write_bytes(content)
    assert step_of(newest_complete(tmp_path / "checkpoints", layout)) == 16


@needs_deepspeed
def test_ranks_of_zero3_that_were_killed_end_with_the_numbers_of_undisturbed_ones(trained: Path, losses: Any) -> None:
    resumed, whole = trained / "killed", trained / "zero3"
    assert json.loads((resumed / "sft.json").read_text())["resumed_step"] == 8
    assert losses(resumed) == losses(whole)
    assert (resumed / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()


@needs_deepspeed
def test_two_ranks_of_zero3_that_the_command_starts_train_as_one(
    sft_run: Callable[..., Path], one_rank: Path, losses: Any
) -> None:
    run = sft_run("alone", "sft.strategy=zero3", "cluster.policy_workers=2")
    assert losses(run) == pytest.approx(losses(one_rank), abs=1e-4)
    check_model(run, one_rank)


@pytest.mark.parametrize("strategy", ["fsdp", "zero2", "zero3"])
def test_two_ranks_train_the_adapter_of_one_and_its_checkpoints_are_exported(
    trained: Path, sft_run: Callable[..., Path], losses: Any, tmp_path: Path, strategy: str
) -> None:
    if strategy not in LORA_STRATEGIES:
        pytest.skip("needs peft and, but for fsdp, deepspeed")
    run, one = trained / f"lora_{strategy}", trained / "one_lora"
    if not one.exists():
        sft_run("one_lora", LORA)
    assert json.loads((run / "sft.json").read_text())["resumed_step"] == (8 if strategy == "zero3" else 0)
    assert losses(run) == pytest.approx(losses(one), abs=1e-4)
    for file in ("adapter/adapter_model.safetensors", "model/model.safetensors"):
        theirs, ours = load_file(one / file), load_file(run / file)
        assert theirs.keys() == ours.keys()
        for name, weight in theirs.items():
            torch.testing.assert_close(ours[name], weight, atol=5e-4, rtol=0)
    export_adapter(run, tmp_path / "adapter", step=16)
    export_run(run, tmp_path / "merged", step=16)


@pytest.mark.parametrize(
    "strategy", [pytest.param("fsdp", marks=needs_peft), pytest.param("zero3", marks=needs_deepspeed)]
)
def test_two_ranks_measure_as_one_and_leave_the_model_of_the_lowest_held_out_loss(
    trained: Path, sft_run: Callable[..., Path], tmp_path: Path, strategy: str
) -> None:
    run, one = trained / f"held_out_{strategy}", sft_run(f"one_held_out_{strategy}", *HELD_OUT[strategy])
    (steps, losses), (_, alone) = (
        zip(*((line.step, line.metrics["sft/valid_loss"]) for line in read_metrics(folder / "metrics.jsonl")
              if "sft/valid_loss" in line.metrics), strict=True)
        for folder in (run, one)
    )  # fmt: skip
    assert steps == (0, 4, 8, 12, 16)
    assert losses[0] == pytest.approx(alone[0], rel=1e-4)
    summary = json.loads((run / "sft.json").read_text())
    assert (summary["valid_loss"], summary["best_step"]) == min(zip(losses[1:], steps[1:], strict=True))
    assert summary["best_step"] < 16
    export_run(run, tmp_path / "best", step=summary["best_step"])
    best, left = (load_file(folder / "model.safetensors") for folder in (tmp_path / "best", run / "model"))
    torch.testing.assert_close(left, best, rtol=0, atol=1e-6)
