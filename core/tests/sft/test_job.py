from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ramet.cli import main
from ramet.config.compose import compose
from ramet.config.schema import Config
from ramet.errors import ConfigError, ConfigErrors
from ramet.runs.manifest import read_manifest
from ramet.runs.run_dir import RunDir
from ramet.runs.stopped import Stopped
from ramet.sft import job, output, trainer
from ramet.sft.job import SftResult, run
from ramet.sft.prepare import RowCounts
from ramet.sft.rank_messages import RankInputs
from ramet.tracking.jsonl import read_metrics

SCRIPT = """
import sys
from ramet.config.compose import compose
from ramet.sft.job import SftResult, run
run(compose(sys.argv[1:], job="sft"))
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "traces.jsonl"
    rows = [
        {
            "conversations": [
                {"from": "human", "value": f"{i}+{i}?"},
                {"from": "gpt", "value": f"<answer>{2 * i}</answer>"},
            ]
        }
        for i in range(50)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def arguments(tiny_model: Path, traces: Path, tmp_path: Path) -> list[str]:
    return [
        f"model.path={tiny_model}", f"sft.data=[{traces}]", f"run.root={tmp_path}", "run.threads=1", "sft.lr=3e-3",
        "sft.sequences_per_step=4", "sft.trainer.max_steps=60", "sft.trainer.save_steps=10",
        "rollout_step.system_prompt=never",
    ]  # fmt: skip


def sft(arguments: list[str], *more: str) -> SftResult:
    return run(compose([*arguments, *more], job="sft"))


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def killed(arguments: list[str], checkpoint: Path) -> None:
    """Run the job in a process of its own and kill it as soon as this checkpoint begins to appear."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], env=environment, stderr=subprocess.DEVNULL)
    try:
        while not checkpoint.exists() and job.poll() is None:
            time.sleep(0.002)
    finally:
        job.kill()
    assert job.wait() == -signal.SIGKILL


def test_a_killed_run_ends_with_the_weights_of_an_undisturbed_one(arguments: list[str], tmp_path: Path) -> None:
    sft(arguments, "run.name=whole")
    name = "run.name=killed"
    killed([*arguments, name], tmp_path / "killed" / "checkpoints" / "checkpoint-20")
    assert not (tmp_path / "killed" / "model").exists()
    sft(arguments, name)
    summary = json.loads((tmp_path / "killed" / "sft.json").read_text())
    assert summary["resumed_step"] in (10, 20)  # the kill may have met the checkpoint half-written
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    steps = [entry.step for entry in read_metrics(tmp_path / "killed" / "metrics.jsonl")]
    assert steps == [10, 20, 30, 40, 50, 60]


def test_a_disk_that_fills_up_costs_no_number(
    arguments: list[str], tmp_path: Path, small_disk: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    sft(arguments, "run.name=whole")
    run_dir = small_disk.folder / "filled"
    mine = ["sft", *arguments, f"run.root={small_disk.folder}", "run.name=filled"]
    save, save_to = trainer._Trainer._save_checkpoint, output.save_model

    def fill_first(self: Any, *given: Any) -> None:
        if self.state.global_step == 20:
            small_disk.fill()
        save(self, *given)

    def fill_last(*given: Any) -> None:
        small_disk.fill()
        save_to(*given)

    for patched, path in (
        ((trainer._Trainer, "_save_checkpoint", fill_first), run_dir / "checkpoints" / "checkpoint-20"),
        ((job, "save_model", fill_last), run_dir / "model"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*patched)
            assert main(mine) == 2
        said = capsys.readouterr().err.splitlines()
        assert said[-1].startswith(f"error: {path}: No space left")
        assert "Traceback" not in "".join(said) and not (run_dir / "model").exists()
        small_disk.ballast.unlink()
    assert main(mine) == 0
    assert weights(run_dir) == weights(tmp_path / "whole")


def test_what_a_kill_left_of_an_old_checkpoint_is_deleted_and_never_taken(arguments: list[str], tmp_path: Path) -> None:
    left = tmp_path / "here" / "checkpoints" / ".checkpoint-5.0123abcd.old"
    sft(arguments, "run.name=here", "sft.trainer.max_steps=15")
    left.mkdir()
    sft(arguments, "run.name=here", "sft.trainer.max_steps=35", "run.allow_config_change=true")
    kept = sorted(path.name for path in left.parent.iterdir())
    assert kept == ["checkpoint-20", "checkpoint-30"]


def test_a_signal_saves_the_step_and_the_same_command_goes_on_exactly(
    arguments: list[str], tmp_path: Path, when: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    more = ("run.name=stopped", "sft.trainer.save_steps=50", "sft.trainer.logging_steps=1")
    sft(arguments, "run.name=whole", *more[1:])
    metrics = tmp_path / "stopped" / "metrics.jsonl"
    with (
        caplog.at_level(logging.INFO),
        when(lambda: metrics.exists() and metrics.stat().st_size > 0, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        pytest.raises(Stopped, match="SIGTERM") as stopped,
    ):
        sft(arguments, *more)
    assert stopped.value.code == 143
    assert "resume with: ramet sft" in caplog.text
    assert read_manifest(tmp_path / "stopped" / "manifest.json").attempts[-1].status == "interrupted"
    saved = int(next((tmp_path / "stopped" / "checkpoints").glob("checkpoint-*")).name.partition("-")[2])
    assert f"saved step {saved} of 60" in caplog.text
    sft(arguments, *more)
    assert json.loads((tmp_path / "stopped" / "sft.json").read_text())["resumed_step"] == saved
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_a_run_leaves_a_model_that_loads_a_curve_and_a_summary(arguments: list[str], tmp_path: Path) -> None:
    sft(arguments, "run.name=a", "sft.trainer.max_steps=5")
    folder = tmp_path / "a"
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert tokenizer.chat_template is not None
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert (folder / "sft_loss.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((folder / "sft.json").read_text())
    assert (summary["rows"], summary["examples"], summary["steps"]) == (50, 50, 5)
    assert summary["final_loss"] == read_metrics(folder / "metrics.jsonl")[-1].metrics["sft/loss"]


def test_a_finished_run_is_left_as_it_is(arguments: list[str], tmp_path: Path) -> None:
    sft(arguments, "run.name=a", "sft.trainer.max_steps=5")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "model").iterdir()}
    sft(arguments, "run.name=a", "sft.trainer.max_steps=5")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "model").iterdir()} == before


def test_out_replaces_an_earlier_model_and_is_saved_in_the_models_dtype(arguments: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    sft(arguments, "run.name=a", "sft.trainer.max_steps=2", f"run.out={out}")
    sft(arguments, "run.name=b", "sft.trainer.max_steps=2", f"run.out={out}", "model.dtype=bfloat16")
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    model = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "out"]


def test_what_another_has_put_in_the_way_of_the_model_is_kept(arguments: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    sft(arguments, "run.name=a", "sft.trainer.max_steps=2", f"run.out={out}")
    for name in (".out.tmp", ".out.old", ".out.notes.tmp"):  # once deleted for their names alone
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("precious")
    sft(arguments, "run.name=b", "sft.trainer.max_steps=2", f"run.out={out}")
    kept = [".out.notes.tmp", ".out.old", ".out.tmp"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*kept, "a", "b", "out"]
    assert all((tmp_path / name / "thesis.tex").read_text() == "precious" for name in kept)


@pytest.mark.parametrize("what", ["a model of somebody else", "a file", "a link"])
def test_nothing_but_a_model_that_sft_wrote_is_replaced(arguments: list[str], tmp_path: Path, what: str) -> None:
    out = tmp_path / "out"
    if what == "a file":
        out.write_text("precious")
    elif what == "a link":
        (tmp_path / "elsewhere").mkdir()
        out.symlink_to(tmp_path / "elsewhere")
    else:
        out.mkdir()
        (out / "config.json").write_text("{}")
    with pytest.raises(ConfigErrors) as caught:
        sft(arguments, "run.name=a", f"run.out={out}")
    assert caught.value.problems == [
        f"run.out: '{out}' is there already, and not written by `ramet sft`; give a new folder"
    ]


def others_may_read(folder: Path) -> list[str]:
    return sorted(path.name for path in [folder, *folder.rglob("*")] if path.stat().st_mode & 0o077)


def test_a_private_run_is_for_its_owner_alone(arguments: list[str], tmp_path: Path) -> None:
    sft(arguments, "run.name=a", "sft.trainer.max_steps=2", "sft.trainer.save_steps=1")
    assert "config.yaml" in others_may_read(tmp_path / "a")
    sft(
        arguments,
        "run.name=b",
        "sft.trainer.max_steps=2",
        "sft.trainer.save_steps=1",
        "run.private=true",
        f"run.out={tmp_path}/out",
    )
    assert others_may_read(tmp_path / "b") == others_may_read(tmp_path / "out") == []
    sft(arguments, "run.name=a", "sft.trainer.max_steps=3", "sft.trainer.save_steps=1", "run.private=true",
        "sft.trainer.lr_scheduler_type=constant_with_warmup",
        "run.allow_config_change=true")  # fmt: skip
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert os.umask(umask := os.umask(0o022)) == 0o022 and os.umask(umask) == umask


NONE = RowCounts(trained=0, too_long=0, malformed=0, unread=0)


def test_the_task_of_ranks_is_a_new_file_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "task"
    task = RankInputs(config=Config(), run=tmp_path, log_level=0, examples=[], valid=[], counts=NONE, fingerprint="")
    task.save(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert RankInputs.load(file) == task
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for taken in (file, tmp_path / "link"):
        with pytest.raises(FileExistsError):
            task.save(taken)


def test_a_resume_with_other_data_or_options_is_refused(arguments: list[str], traces: Path, tmp_path: Path) -> None:
    sft(arguments, "run.name=a", "sft.trainer.max_steps=2")
    with pytest.raises(ConfigErrors, match=r"sft\.lr was 0\.003, is 0\.1"):
        sft(arguments, "run.name=a", "sft.trainer.max_steps=2", "sft.lr=0.1")
    other = tmp_path / "other.jsonl"
    other.write_text(traces.read_text() * 2)
    with pytest.raises(ConfigErrors, match=r"training data"):
        sft(arguments, "run.name=a", "sft.trainer.max_steps=2", f"sft.data=[{other}]")


def test_a_run_directory_in_use_is_refused(arguments: list[str], tmp_path: Path) -> None:
    with RunDir.open(tmp_path, "a"), pytest.raises(ConfigError, match="in use"):
        sft(arguments, "run.name=a")


def test_nothing_is_written_when_something_is_wrong(arguments: list[str], tmp_path: Path) -> None:
    wrong: list[Any] = ["run.name=a", "sft.sequences_per_step=0", "sft.data=[nowhere.jsonl]"]
    with pytest.raises(ConfigErrors) as caught:
        sft(arguments, *wrong)
    assert "sft.sequences_per_step=0: " in str(caught.value) and "sft.data: nowhere.jsonl: " in str(caught.value)
    assert list(tmp_path.iterdir()) == []
