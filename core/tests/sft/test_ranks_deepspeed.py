"""`ramet sft` with the real DeepSpeed on the CPU: ZeRO-0, 2 and 3, one rank and two, and resume."""

from __future__ import annotations

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
from ramet.sft.checkpoints import SftLayout, newest_complete, step_of

pytest.importorskip("deepspeed")
SCRIPT = """
import sys
from ramet.config.compose import compose
from ramet.sft.job import run
run(compose(sys.argv[1:], job="sft"))
"""
IN_PIECES = """
import ramet.sft.loss
ramet.sft.loss.CHUNK_ELEMENTS = 5 * 256  # five tokens at a time
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


@pytest.fixture(scope="module")
def under_torchrun(sft_arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Runs the job as torchrun starts it, once as each of two ranks, which have different numbers of pieces in their
    losses; returns the run's directory.
    """
    script = tmp_path_factory.mktemp("script") / "job.py"
    script.write_text(IN_PIECES + SCRIPT)
    root = next(text for text in sft_arguments if text.startswith("run.root=")).partition("=")[2]

    def start(name: str, *more: str) -> Path:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*launcher, *sft_arguments, f"run.name={name}", *more], env=environment, timeout=300, check=True)
        return Path(root) / name

    return start


@pytest.mark.parametrize(
    ("strategy", "launcher"), [("zero0", "sft_run"), ("zero2", "under_torchrun"), ("zero3", "under_torchrun")]
)
def test_two_ranks_train_as_one_with_twice_the_batches(
    strategy: str, launcher: str, one_rank: Path, losses: Any, request: pytest.FixtureRequest
) -> None:
    start = request.getfixturevalue(launcher)
    run = start(f"{strategy}_{launcher}", f"sft.strategy={strategy}", "cluster.policy_workers=2")
    assert losses(run) == pytest.approx(losses(one_rank), abs=1e-4)
    check_model(run, one_rank)
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
    run = sft_run("alone", "sft.strategy=zero3", "sft.accumulate=2")
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
