"""`ramet runs` and `ramet compare` on runs of `ramet train`."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from core.tests.history.made_runs import write_checkpoints, write_training

from ramet.cli import main


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """runs/ with a finished run that has three checkpoints, and a stopped one."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs")
    write_checkpoints(write_training(folder, "low", [0.1, 0.2, 0.3, 0.4], "policy.lr=1e-6"), {1: 0.3, 2: 0.1, 4: 0.2})
    write_training(
        folder, "20261127-023551-a-name-of-a-run-that-is-long", [0.3, 0.5], "policy.lr=1e-5", error=KeyboardInterrupt()
    )
    return folder


def test_runs_are_a_table_that_fits_80_columns_of_a_terminal(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["runs"]) == 0
    header, *rows, _ = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "JOB", "STATE", "STEPS", "RESULT", "SIZE", "AGE"]
    cells = {row.split()[0]: row.split()[1:5] for row in rows}
    assert cells["low"] == ["train", "finished", "4/10", "0.400"]
    assert cells["20261127-023551-a-name-of-a-run-that-is-long"] == ["train", "stopped", "2/10", "0.500"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    main(["runs"])
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert max(map(len, lines)) <= 80 and any(line.startswith("…") for line in lines)


def test_the_page_shows_the_table_that_is_printed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "running.md").read_text(encoding="utf-8")
    shown = page.partition("$ ramet runs\n")[2].partition("```")[0]
    main(["runs"])
    texts = [text.splitlines() for text in (shown, capsys.readouterr().out)]
    assert texts[0][0].split() == texts[1][0].split() and texts[0][-1] == texts[1][-1]
    row = re.compile(r"\S+ +(train|sft|eval) +[a-z]+ +\d+/\d+ +[\d.]+ +[\d.]+ [kMG]?B +\d+ (s|min|h|d)")
    assert all(row.fullmatch(line) for lines in texts for line in lines[1:-1])


def test_runs_are_json_for_scripts(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["runs", "--json"])
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed["low"]["reward"] == 0.4 and listed["low"]["bytes"] > 3000 and listed["low"]["path"] == "runs/low"


def test_prune_lists_and_removes_after_yes_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = root / "low/checkpoints/step_000002"
    assert main(["runs", "--prune"]) == 0
    out = capsys.readouterr().out
    assert f"old checkpoint  {old}" in out and out.endswith("nothing was removed; --yes removes it\n")
    assert old.is_dir()
    assert main(["runs", "--prune", "--json"]) == 0
    assert [item["removed"] for item in json.loads(capsys.readouterr().out)] == [False]
    assert main(["runs", "--prune", "--yes"]) == 0
    assert f"removed {old}\n" in capsys.readouterr().out
    assert sorted(path.name for path in old.parent.iterdir()) == ["step_000001", "step_000004"]
    assert main(["runs", "--yes"]) == 1


def test_a_run_that_cannot_be_changed_does_not_end_the_prune(
    root: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoints(write_training(root, "another", [0.1, 0.2]), {1: 0.1, 2: 0.2})
    (root / "low/LOCK").unlink()
    (root / "low/LOCK").symlink_to("elsewhere")
    assert main(["runs", "--prune", "--yes"]) == 0
    assert f"removed {root / 'another/checkpoints/step_000001'}\n" in capsys.readouterr().out
    assert "left as it is: " in caplog.text
    assert (root / "low/checkpoints/step_000002").is_dir()


def test_trainings_are_compared_with_intervals_and_the_keys_that_differ(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_training(root, "high", [0.3, 0.4, 0.6, 0.7], "policy.lr=1e-4", valid={2: 0.5, 4: 0.25})
    assert main(["compare", "low", "high", "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert "| high | finished | 4/10 | 0.650 ± 0.635 | 0.250 | 0.500 at 2 | 2.0s |" in out
    assert "| high | +0.3, +0.3 to +0.3 * | 2 (3 to 4) |" in out
    assert "| 2 | - | 0.500 |\n| 4 | - | 0.250 |" in out
    assert "| setting | low | high |\n| --- | --- | --- |\n| policy.lr | 1e-06 | 0.0001 |\n" in out
    assert main(["compare", "low", "high", "--format", "json"]) == 0
    low, high = json.loads(capsys.readouterr().out)
    assert low["settings"] == [] and high["valid_by_step"] == {"2": 0.5, "4": 0.25}


def test_a_reward_that_is_nan_has_no_interval_and_is_null_in_json(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_training(root, "nan", [0.3, 0.4, 0.6, math.nan])
    assert main(["compare", "low", "nan", "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert "| nan | finished | 4/10 | nan | - |" in out and "| nan | nan | 2 (3 to 4) |" in out
    assert main(["compare", "low", "nan", "--format", "json"]) == 0
    assert '"last_mean": null' in capsys.readouterr().out
    assert main(["runs", "--json"]) == 0
    assert '"reward": null' in capsys.readouterr().out


def test_names_of_runs_do_not_steer_the_terminal(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "low").rename(root / "low\x1b[31m")
    assert main(["compare", str(root / "low\x1b[31m")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "x1b[31m" in "".join(out.split())


def test_a_folder_of_runs_and_what_is_no_run_are_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_training(root / "whole_way", "rl", [0.5])
    for command in ("compare", "doctor", "report"):
        assert main([command, "whole_way"]) == 1
        assert "as of a pipeline; name one of them: runs/whole_way/rl" in capsys.readouterr().err
    assert main(["compare", "low", "nothere"]) == 1
    assert "no run 'nothere'" in capsys.readouterr().err
    (root / "empty").mkdir()
    assert main(["compare", "low", "empty"]) == 1
    assert "compare: empty: no manifest.json" in capsys.readouterr().err


def test_runs_of_several_kinds_are_not_compared(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "measured").mkdir()
    (root / "measured/results.json").write_text("{}")
    assert main(["compare", "low", "runs/measured"]) == 1
    assert "low is of `ramet train`, runs/measured is of `ramet eval`" in capsys.readouterr().err
