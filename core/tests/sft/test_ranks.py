"""`ramet sft` over two FSDP ranks on the CPU: the numbers of one rank, ranks that die, signals, resume."""

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

from ramet.config.compose import compose
from ramet.config.schema import Strategy
from ramet.errors import ConfigError, ConfigErrors, InfraError
from ramet.runs.stopped import Stopped
from ramet.sft.checkpoints import SftLayout, newest_complete, step_of
from ramet.sft.dry_run import plan

SCRIPT = """
import sys
from ramet.config.compose import compose
from ramet.sft.job import run
run(compose(sys.argv[1:], job="sft"))
"""


@pytest.fixture(scope="module")
def whole(sft_run: Callable[..., Path]) -> Path:
    return sft_run("fsdp", "sft.strategy=fsdp", "cluster.policy_workers=2")


def test_two_ranks_train_as_one(whole: Path, one_rank: Path, losses: Any) -> None:
    assert losses(whole) == pytest.approx(losses(one_rank), abs=1e-4)
    summaries = [json.loads((run / "sft.json").read_text()) for run in (whole, one_rank)]
    assert [summary["steps"] for summary in summaries] == [24, 24]


def test_the_first_rank_writes_the_model_that_one_rank_writes(whole: Path, one_rank: Path) -> None:
    names = [sorted(path.name for path in (run / "model").iterdir()) for run in (whole, one_rank)]
    assert names[0] == names[1]
    assert (whole / "model/config.json").read_text() == (one_rank / "model/config.json").read_text()
    theirs, ours = (load_file(run / "model/model.safetensors") for run in (one_rank, whole))
    assert list(theirs) == list(ours)
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, atol=1e-4, rtol=0)


def test_a_checkpoint_with_a_missing_or_broken_file_is_passed_over(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "checkpoints", tmp_path / "checkpoints")
    layout, newest = SftLayout(strategy=Strategy.FSDP, workers=2), tmp_path / "checkpoints" / "checkpoint-16"
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    assert len(files) == 10
    for file in files:
        content = file.read_bytes()
        for wrong in (content[: len(content) // 2], None):
            file.unlink() if wrong is None else file.write_bytes(wrong)
            assert step_of(newest_complete(tmp_path / "checkpoints", layout)) == 8, (file, wrong is None)
        file.write_bytes(content)
    assert step_of(newest_complete(tmp_path / "checkpoints", layout)) == 16


def test_checkpoints_of_another_strategy_or_number_of_ranks_are_refused(
    whole: Path, sft_run: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError, match=r"fsdp with cluster\.policy_workers=2, and now it is sft\.strategy"):
        sft_run("fsdp", "sft.strategy=fsdp", "cluster.policy_workers=3", "run.allow_config_change=true")
    with pytest.raises(ConfigError, match=r"now it is sft\.strategy=none with cluster\.policy_workers=1"):
        sft_run("fsdp", "run.allow_config_change=true")


def test_the_plan_says_who_trains_and_refuses_what_the_run_would(whole: Path, sft_arguments: list[str]) -> None:
    ranks = [*sft_arguments, "sft.strategy=fsdp", "cluster.policy_workers=2"]
    facts = plan(compose([*ranks, "run.name=new"], job="sft")).facts
    assert facts["placement"] == "fsdp over 2 processes, each on cpu"
    assert facts["steps"] == "24, each of 8 sequences"
    with pytest.raises(ConfigErrors, match="cannot be taken over"):
        plan(compose([*ranks, "run.name=fsdp", "cluster.policy_workers=3"], job="sft"))


class Started:
    """The ranks that were started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        start = subprocess.Popen

        def recorded(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
            process = start(*arguments, **options)
            if "ramet.sft.rank" in arguments[0]:
                self.processes.append(process)
            return process

        monkeypatch.setattr("ramet.sft.launch.subprocess.Popen", recorded)


def test_a_killed_rank_and_a_signal_end_all_and_the_same_command_goes_on_exactly(
    whole: Path,
    sft_run: Callable[..., Path],
    losses: Any,
    when: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, started = whole.parent / "killed", Started(monkeypatch)
    options = ("sft.strategy=fsdp", "cluster.policy_workers=2")
    with (
        when(run / "checkpoints/checkpoint-8/trainer_state.json", lambda: started.processes[1].kill()),
        pytest.raises(InfraError, match=r"rank 1 .*SIGKILL"),
    ):
        sft_run("killed", *options)
    assert all(process.poll() is not None for process in started.processes)
    assert not list(run.glob(".ranks*"))
    began = (run / "metrics.jsonl").stat().st_size
    with (
        when(lambda: (run / "metrics.jsonl").stat().st_size > began, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        pytest.raises(Stopped) as stopped,
    ):
        sft_run("killed", *options)
    assert stopped.value.code == 143
    assert all(process.poll() is not None for process in started.processes)
    sft_run("killed", *options)
    assert losses(run) == losses(whole)
    assert (run / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()


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
def test_ranks_end_with_the_process_that_started_them(sft_arguments: list[str]) -> None:
    root = next(text for text in sft_arguments if text.startswith("run.root=")).partition("=")[2]
    run = Path(root) / "left"
    command = [sys.executable, "-c", SCRIPT, *sft_arguments, "run.name=left", "sft.strategy=fsdp"]
    command.append("cluster.policy_workers=2")
    job = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    metrics = run / "metrics.jsonl"
    try:
        while not (metrics.exists() and metrics.stat().st_size) and job.poll() is None:
            time.sleep(0.02)
        assert len(ranks_of(run)) == 2
    finally:
        job.kill()
    assert job.wait() == -signal.SIGKILL
    until = time.monotonic() + 20
    while ranks_of(run) and time.monotonic() < until:
        time.sleep(0.05)
    assert ranks_of(run) == []


def test_everything_that_is_wrong_with_the_ranks_is_reported_together(
    sft_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    wrong = ["sft.strategy=zero3_offload", "cluster.name=ray", "sft.epochs=0"]
    with pytest.raises(ConfigErrors) as caught:
        sft_run("wrong", *wrong)
    text = str(caught.value)
    assert "sft.epochs=0.0: " in text
    assert "cluster.name=ray: `ramet sft` starts its processes on this machine itself" in text
    assert "pip install 'ramet[deepspeed]', or choose sft.strategy=fsdp" in text
    assert "sft.strategy=zero3_offload: for GPUs only" in text


def test_zero0_in_bfloat16_is_refused(sft_run: Callable[..., Path]) -> None:
    with pytest.raises(ConfigErrors, match=r"sft\.strategy=zero0: only with model\.dtype=float32, got bfloat16"):
        sft_run("wrong", "sft.strategy=zero0", "model.dtype=bfloat16")


def test_several_workers_without_a_strategy_are_an_error(sft_run: Callable[..., Path]) -> None:
    with pytest.raises(ConfigErrors, match=r"allowed with several: zero0, zero2, zero3, .*fsdp"):
        sft_run("wrong", "cluster.policy_workers=2")


def test_the_environment_of_a_launcher_must_agree_with_the_configuration(
    sft_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)  # accelerate leaves some in a process where it trained
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigErrors, match="did not set LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT"):
        sft_run("wrong", "sft.strategy=fsdp")
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigErrors, match=r"cluster\.policy_workers=1: but WORLD_SIZE=4 processes were started"):
        sft_run("wrong", "sft.strategy=fsdp")
