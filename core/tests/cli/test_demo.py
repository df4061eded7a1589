"""`ramet demo`: the shipped recording, replayed and reported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ramet
from ramet.cli import demo, main
from ramet.tracking.jsonl import read_metrics

FOLDER = Path(ramet.__file__).parent / "demo" / demo.RECORDING
FILES = [path for path in FOLDER.rglob("*") if path.is_file()]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_prints_the_recorded_steps_and_writes_a_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--fast"]) == 0
    said = capsys.readouterr().out
    facts = json.loads((FOLDER / demo.FACTS).read_text())
    rewards = [entry.metrics["reward/roots_mean"] for entry in read_metrics(FOLDER / "metrics.jsonl")]
    assert [float(reward) for reward in re.findall(r"^step \d+/\d+  reward (\S+)", said, re.MULTILINE)] == [
        round(reward, 3) for reward in rewards
    ]
    assert len(rewards) == facts["steps"] and facts["commit"][:8] in said and facts["hardware"] in said
    report = folder / demo.REPORT
    assert said.endswith(f"Open in a browser: {report}\n")
    text = report.read_text()
    assert text.count('data-kind="step"') == facts["steps"]
    assert '"tokens":null' not in text and '"tokens":["' in text  # each token is shown, without a tokenizer


def test_the_replay_takes_seconds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    assert main(["demo", "--out", "other.html"]) == 0
    assert sum(slept) == pytest.approx(demo.REPLAY_S) and demo.REPLAY_S < 5 and (folder / "other.html").is_file()


def test_a_file_of_the_user_stays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / demo.REPORT).write_text("mine")
    assert main(["demo", "--fast"]) == 1
    assert demo.REPORT in capsys.readouterr().err and (folder / demo.REPORT).read_text() == "mine"


def test_where_nothing_can_be_written_it_ends_before_the_replay(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("mine")
    assert main(["demo", "--out", "file/demo.html"]) == 1
    out, error = capsys.readouterr()
    assert out == "" and "--out: " in error and "file' is not a folder that can be written to; name a file" in error


def test_it_opens_the_report_only_when_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) is None)
    main(["demo", "--fast"])
    assert opened == []
    main(["demo", "--fast", "--open"])
    assert opened == [(folder / demo.REPORT).as_uri()]


def test_the_recording_is_small_and_names_no_machine() -> None:
    assert sum(path.stat().st_size for path in FILES) < 1_000_000
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    assert {attempt["host"] for attempt in manifest["attempts"]} == {""}
    texts = [path.read_text() for path in FILES if path.suffix != ".gz"]
    assert not re.findall(r"(?<![\w:/.])/(?:home|root|tmp|work|usr|opt)/", "".join(texts))
