"""`ramet sft` with the real DeepSpeed on the CPU: ZeRO-0, 2 and 3, one rank and two, and resume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ramet.config.schema import Strategy
from ramet.planning.memory_sft import SftInputs, sft_state
from ramet.sft.checkpoints import SftLayout, newest_complete, step_of

pytest.importorskip("deepspeed")
SCRIPT = """
import sys
from ramet.config.compose import compose
from ramet.sft.job import run
run(compose(sys.argv[1:], job="sft"))
"""


@pytest.fixture(scope="module")
def zero3(sft_run: Callable[..., Path]) -> Path:
    return sft_run("zero3", "sft.strategy=zero3", "cluster.policy_workers=2")


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


@pytest.mark.parametrize("strategy", ["zero0", "zero2", "zero3"])
def test_two_ranks_train_as_one_and_hold_what_the_plan_says(
    strategy: str,
    under_torchrun: Callable[..., Path],
    one_rank: Path,
    losses: Any,
    sft_inputs: Callable[..., SftInputs],
) -> None:
    run = under_torchrun(f"{strategy}_pieces", f"sft.strategy={strategy}", "cluster.policy_workers=2")
    assert losses(run) == pytest.approx(losses(one_rank), abs=1e-4)
    check_model(run, one_rank)
    check_held(run, sft_inputs(strategy))
    layout, newest = SftLayout(strategy=Strategy(strategy), workers=2), run / "checkpoints/checkpoint-16"
    assert newest_complete(run / "checkpoints", layout) == newest
    next(newest.glob("global_step16/*.pt")).unlink()
    assert step_of(newest_complete(run / "checkpoints", layout)) == 8


def test_two_ranks_of_zero3_train_as_one_and_write_its_model(zero3: Path, one_rank: Path, losses: Any) -> None:
    assert losses(zero3) == pytest.approx(losses(one_rank), abs=1e-4)
    check_model(zero3, one_rank)


def test_one_rank_of_zero3_trains_as_a_process_without_it(
    sft_run: Callable[..., Path], one_rank: Path, losses: Any
) -> None:
    run = sft_run("alone", "sft.strategy=zero3")
    assert losses(run) == pytest.approx(losses(one_rank), abs=1e-4)
    check_model(run, one_rank)


def test_a_zero3_checkpoint_with_a_missing_or_broken_file_is_passed_over(zero3: Path, tmp_path: Path) -> None:
    shutil.copytree(zero3 / "checkpoints", tmp_path / "checkpoints")
    layout, newest = SftLayout(strategy=Strategy.ZERO3, workers=2), tmp_path / "checkpoints" / "checkpoint-16"
    files = [newest / "latest", newest / "rng_state_1.pth", *sorted(newest.glob("global_step16/*"))]
    assert len(files) == 6
    for file in files:
        content = file.read_bytes()
        for wrong in (content[: len(content) // 2], None):
            file.unlink() if wrong is None else file.write_bytes(wrong)
            assert step_of(newest_complete(tmp_path / "checkpoints", layout)) == 8, (file, wrong is None)
        file.write_bytes(content)
    assert step_of(newest_complete(tmp_path / "checkpoints", layout)) == 16


def ranks_of(run: Path) -> list[int]:
    """Process ids of the ranks that work on this run, without the children that a rank forks for a moment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"ramet.sft.rank" in command and any(part.startswith(bytes(run)) for part in command):
            found[int(folder.name)] = parent
    return [process for process, parent in found.items() if parent not in found]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_ranks_end_with_the_process_that_started_them_and_the_same_command_goes_on_exactly(
    zero3: Path, sft_run: Callable[..., Path], sft_arguments: list[str], losses: Any
) -> None:
    run, options = zero3.parent / "killed", ["sft.strategy=zero3", "cluster.policy_workers=2"]
    command = [sys.executable, "-c", SCRIPT, *sft_arguments, "run.name=killed", *options]
    job = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    try:
        while not (run / "checkpoints/checkpoint-8/trainer_state.json").exists() and job.poll() is None:
            time.sleep(0.02)
        assert len(ranks_of(run)) == 2
    finally:
        job.kill()
    assert job.wait() == -signal.SIGKILL
    until = time.monotonic() + 20
    while ranks_of(run) and time.monotonic() < until:
        time.sleep(0.05)
    assert ranks_of(run) == []
    sft_run("killed", *options)
    assert losses(run) == losses(zero3)
    assert (run / "model/model.safetensors").read_bytes() == (zero3 / "model/model.safetensors").read_bytes()
