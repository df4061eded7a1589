"""F26: trackers that fail or hang, and what trackers are told of runs that end early, in all three jobs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.config.compose import compose
from ramet.evaluate.evaluation import run as evaluate
from ramet.runs.manifest import read_manifest
from ramet.runs.stopped import Stopped
from ramet.sft.job import run as sft
from ramet.tracking import trackers
from ramet.tracking.jsonl import read_metrics

MODULE = '''
import json
import os
import signal
import time


class Notes:
    def __init__(self, run):
        self.run, self.file = run, run.folder / "notes.jsonl"
        self.note("made", run.job, run.id, run.logged, run.total_steps)

    def note(self, *what):
        with self.file.open("a") as file:
            file.write(json.dumps(what) + "\\n")

    def log(self, step, metrics):
        self.note("log", step, sorted(metrics))

    def rewind(self, step):
        self.note("rewind", step)

    def ended(self, exit_code):
        self.note("ended", exit_code)

    def close(self):
        self.note("closed")


class Stops(Notes):
    """A scheduler takes the machine away after the first step."""

    def log(self, step, metrics):
        super().log(step, metrics)
        if step == 1 and self.run.logged < 1:
            os.kill(os.getpid(), signal.SIGTERM)


class Hangs(Notes):
    def log(self, step, metrics):
        time.sleep(600)


class Raises(Notes):
    def log(self, step, metrics):
        raise ConnectionError("no route to host")


def hangs_when_made(run):
    time.sleep(600)
'''
NAMES = {"notes": "Notes", "stops": "Stops", "hangs": "Hangs", "raises": "Raises", "hangs_made": "hangs_when_made"}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with these trackers."""
    info = tmp_path / "site" / "faulty_trackers-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-trackers\nVersion: 1.0\n")
    points = "".join(f"{name} = faulty_trackers:{made}\n" for name, made in NAMES.items())
    (info / "entry_points.txt").write_text(f"[ramet.trackers]\n{points}")
    (tmp_path / "site" / "faulty_trackers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("faulty_trackers", None)


def notes(run: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (run / "notes.jsonl").read_text().splitlines()]


def test_trackers_that_hang_or_raise_neither_stop_a_run_nor_change_it(workspace, monkeypatch, caplog):
    monkeypatch.setattr(trackers, "CLOSE_S", 0.5)
    good = workspace.train("good", "run.threads=1")
    started = time.monotonic()
    bad = workspace.train("bad", "run.threads=1", "trackers=[hangs_made,hangs,raises,notes]")
    assert time.monotonic() - started < 120
    assert (bad / "model/model.safetensors").read_bytes() == (good / "model/model.safetensors").read_bytes()
    assert [line["step"] for line in workspace.metrics("bad")] == [1, 2]
    made = [note for note in notes(bad) if note[0] == "made"]
    assert len(made) == 3 and made[0][1] == "train" and made[0][2] == read_manifest(bad / "manifest.json").id
    said = sorted(r.getMessage() for r in caplog.records if r.name == "ramet.tracking.background")
    starts = ["tracker hangs: 1 of 3 calls ", "tracker hangs_made: 3 of 3 calls ", "tracker raises failed, ",
              "tracker raises: 2 of 3 calls "]  # fmt: skip
    assert [line[: len(start)] for line, start in zip(said, starts, strict=True)] == starts
    assert said[2].endswith(": ConnectionError('no route to host') (faulty_trackers.py:46)")


def test_a_stopped_and_resumed_run_is_told_with_its_exit_codes(workspace):
    with pytest.raises(Stopped):
        workspace.train("preempted", "trackers=[stops]", steps=3)
    run = workspace.train("preempted", "trackers=[stops]", steps=3)
    told = [note for note in notes(run) if note[0] != "log"]
    id = read_manifest(run / "manifest.json").id
    stopped_after = told[4][3]  # the signal comes while a step is played or updated
    assert len(id) == 12 and told == [
        ["made", "train", id, -1, 3], ["rewind", -1], ["ended", 143], ["closed"],
        ["made", "train", id, stopped_after, 3], ["rewind", stopped_after], ["ended", 0], ["closed"],
    ]  # fmt: skip
    assert [note[1] for note in notes(run) if note[0] == "log"] == [1, 2, 3]


def test_an_error_ends_a_run_with_its_exit_code(workspace, monkeypatch):
    from ramet.train.loop import Loop

    async def fails(self: Loop, step: int) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Loop, "_step", fails)
    with pytest.raises(RuntimeError):
        workspace.train("broken", "trackers=[notes]")
    assert notes(workspace.runs / "broken")[-2:] == [["ended", 2], ["closed"]]


def test_fine_tuning_is_tracked_with_its_exit_code(workspace, tmp_path):
    rows = [{"conversations": [{"from": "human", "value": f"{i}?"}, {"from": "gpt", "value": "1"}]} for i in range(8)]
    data = tmp_path / "traces.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = [
        f"model.path={workspace.model}", f"sft.data=[{data}]", f"run.root={tmp_path}", "run.name=sft",
        "sft.sequences_per_step=4", "sft.trainer.max_steps=4", "sft.trainer.save_steps=1",
        "sft.trainer.logging_steps=1", "rollout_step.system_prompt=never", "trackers=[stops]",
    ]  # fmt: skip
    with pytest.raises(Stopped):
        sft(compose(overrides, job="sft"))
    sft(compose(overrides, job="sft"))
    told = notes(tmp_path / "sft")
    assert told[0][:2] == ["made", "sft"]
    assert [note[1] for note in told if note[0] == "ended"] == [128 + signal.SIGTERM, 0]
    assert [note[1] for note in told if note[0] == "log"] == [1, 2, 3, 4]


def test_an_evaluation_is_tracked_once_and_shown_by_its_table_alone(workspace, capsys):
    evaluate(compose(workspace.measure("measured", "trackers=[console,notes]"), job="eval"))
    run = workspace.runs / "measured"
    id = read_manifest(run / "manifest.json").id
    names = [f"eval/arithmetic/{name}" for name in ("accuracy", "accuracy/pass@2", "judged_share", "tool_use")]
    assert notes(run) == [["made", "eval", id, -1, 0], ["log", 0, names], ["ended", 0], ["closed"]]
    (entry,) = read_metrics(run / "metrics.jsonl")
    assert entry.step == 0 and entry.metrics["eval/arithmetic/judged_share"] == 1.0
    assert "step 0" not in capsys.readouterr().out


def test_a_failed_evaluation_is_told_to_trackers(workspace, monkeypatch):
    from ramet.errors import InfraError
    from ramet.evaluate import evaluation

    async def fails(*given: object, **named: object) -> None:
        raise InfraError("the engine is gone")

    monkeypatch.setattr(evaluation, "_measure", fails)
    with pytest.raises(InfraError):
        evaluate(compose(workspace.measure("gone", "trackers=[notes]"), job="eval"))
    assert notes(workspace.runs / "gone")[1:] == [["ended", 2], ["closed"]]


def test_wandb_and_tensorboard_of_a_resumed_run_have_every_step_once(workspace, monkeypatch, tmp_path):
    """The run fails after step 3 was logged; its newest checkpoint is of step 2."""
    wandb = pytest.importorskip("wandb", reason="needs ramet[wandb]")
    pytest.importorskip("tensorboard", reason="needs ramet[tensorboard]")
    from ramet.train.loop import Loop

    monkeypatch.setattr(trackers, "CLOSE_S", 120.0)  # other tests run beside this one
    step_of = Loop._step

    async def fails(self: Loop, step: int) -> None:
        if step == 4:
            raise RuntimeError("out of memory")
        await step_of(self, step)

    chosen = ("trackers=[wandb,tensorboard]", "train.save_every=2", "wandb.mode=offline")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(Loop, "_step", fails)
        workspace.train("tracked", *chosen, steps=4)
    run = workspace.train("tracked", *chosen, steps=4)
    assert sorted(wandb_steps(run)) == [(read_manifest(run / "manifest.json").id, step) for step in (1, 2, 3, 4)]
    assert tensorboard_steps(run) == [1, 2, 3, 4]
    wandb.teardown()


def wandb_steps(run: Path) -> list[tuple[str, int]]:
    """(id of the run there, step) of every row of its history."""
    import subprocess

    found = []
    for file in (run / "wandb").glob("offline-run-*/*.wandb"):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        text = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout
        rows = [record for record in map(json.loads, text.splitlines()) if record["type"] == "history"]
        found += [(file.stem.removeprefix("run-"), row["history"]["item"]["step"]) for row in rows]
    return found


def tensorboard_steps(run: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(run / "tensorboard"))
    shown.Reload()
    return [one.step for one in shown.Scalars("reward/mean")]
