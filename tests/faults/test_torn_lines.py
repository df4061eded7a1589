"""F35: a kill -9 tears the line that was being written. Readers leave a bad last line out and say so; writers go on."""

from __future__ import annotations

import gzip
import logging
import shutil
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.errors import ConfigError
from ramet.evaluate.evaluation import run as evaluate
from ramet.evaluate.files import read_results
from ramet.report.html import write_report
from ramet.rollout.record import read_records
from ramet.tracking.jsonl import read_metrics


@pytest.fixture(scope="module")
def finished(workspace) -> str:
    workspace.train("finished", steps=2)
    return "finished"


@pytest.fixture
def torn(workspace, finished, tmp_path) -> Path:
    """A copy of a finished run, for a test to tear."""
    return Path(shutil.copytree(workspace.runs / finished, tmp_path / "torn"))


def tear(file: Path, left: float) -> None:
    """Cut a file as a kill in the middle of its last write would; `left` is the share of that line that is left."""
    whole = file.read_bytes()
    start = whole.rstrip(b"\n").rfind(b"\n") + 1
    file.write_bytes(whole[: start + int(left * (len(whole) - start - 1))])


@pytest.mark.parametrize("left", [0.1, 0.5, 0.99])
def test_a_report_of_a_run_with_torn_metrics_shows_the_whole_lines_and_says_so(torn, caplog, left):
    """F35: `metrics.jsonl`, read."""
    tear(torn / "metrics.jsonl", left)
    assert [entry.step for entry in read_metrics(torn / "metrics.jsonl")] == [1]
    assert "metrics.jsonl: skipped 1 unreadable line(s), the first is line 2" in caplog.text
    assert write_report(torn).is_file()


def test_a_run_goes_on_after_torn_metrics_and_writes_every_step_once(workspace, finished, caplog):
    """F35: `metrics.jsonl`, written on. A step is reported before its checkpoint, so a torn line has none."""
    shutil.copytree(workspace.runs / finished, workspace.runs / "goes_on")
    tear(workspace.runs / "goes_on/metrics.jsonl", 0.5)
    shutil.rmtree(workspace.runs / "goes_on/checkpoints/step_000002")
    workspace.train("goes_on", steps=4)
    assert "metrics.jsonl: dropped a torn last line" in caplog.text
    assert [line["step"] for line in workspace.metrics("goes_on")] == [1, 2, 3, 4]


@pytest.mark.parametrize("left", [0.2, 0.7, 0.99])
def test_a_torn_file_of_rollouts_gives_its_whole_groups_and_says_so(torn, caplog, left):
    """F35: rollout records."""
    file = torn / "rollouts/step_000002.jsonl.gz"
    whole = list(read_records(file))
    packed = file.read_bytes()
    file.write_bytes(packed[: int(left * len(packed))])
    found = list(read_records(file))
    assert found == whole[: len(found)]
    assert "step_000002.jsonl.gz is torn" in caplog.text
    caplog.clear()
    assert write_report(torn).is_file()
    assert "step_000002.jsonl.gz is torn" in caplog.text


def test_a_broken_line_that_is_not_the_last_is_no_torn_one(torn):
    """F35: what is in the middle was not torn by a kill, and is not passed over in silence."""
    file = torn / "rollouts/step_000002.jsonl.gz"
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    file.write_bytes(gzip.compress(b"".join([lines[0][:50] + b"\n", *lines[1:]])))
    with pytest.raises(ConfigError, match=r"step_000002\.jsonl\.gz, line 1: not JSON"):
        list(read_records(file))


@pytest.mark.parametrize("line", [1, 3], ids=["the header", "a task"])
def test_an_evaluation_goes_on_after_a_torn_line(workspace, monkeypatch, caplog, line):
    """F35: `results.json.partial.jsonl`. What was torn is measured again; the results are those of a whole run."""
    name = f"torn_{line}"
    evaluate(compose(workspace.measure(f"whole_{line}"), job="eval"))
    monkeypatch.setattr("ramet.evaluate.partial.PartialResults.finish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        evaluate(compose(workspace.measure(name), job="eval"))
    monkeypatch.undo()
    partial = workspace.runs / name / "results.json.partial.jsonl"
    partial.write_bytes(b"".join(partial.read_bytes().splitlines(keepends=True)[:line]))
    tear(partial, 0.5)
    with caplog.at_level(logging.INFO, logger="ramet"):
        evaluate(compose(workspace.measure(name), job="eval"))
    assert "results.json.partial.jsonl: dropped " in caplog.text
    assert ("rollouts are there" in caplog.text) == (line == 3)
    results = [read_results(workspace.runs / run / "results.json")["results"] for run in (name, f"whole_{line}")]
    scores = [[(task["task"], len(task["rollouts"])) for task in found[0]["tasks"]] for found in results]
    assert scores[0] == scores[1]


def interrupt(self: object) -> None:
    raise KeyboardInterrupt
