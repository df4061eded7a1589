"""Several runs in one page: what is compared, what is refused, and what a browser shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core.tests.report.conftest import forked_group, record

from ramet.errors import ConfigError
from ramet.evaluate.header import Header
from ramet.evaluate.partial import PartialResults
from ramet.evaluate.tasks import Judgement, task_result
from ramet.report.comparison import comparison
from ramet.report.html import write_comparison
from ramet.rollout.record import write_records
from ramet.tracking.jsonl import JsonlTracker
from ramet.types import BenchmarkInfo, Group, Rollout, StopReason, Task, user_prompt

RATES = {"slow": 1e-6, "fast": 1e-5}


@pytest.fixture
def trained(tmp_path: Path) -> list[Path]:
    """Two runs of 20 steps of two groups; the second learns."""
    for name, rate in RATES.items():
        folder = tmp_path / name
        tracker = JsonlTracker(folder / "metrics.jsonl")
        for step in range(1, 21):
            reward = 0.25 + (0.03 * step if name == "fast" else 0.0)
            tracker.log(step, {"reward/mean": reward, "train/lr": rate, "rollout/turns_mean": 2.0})
            groups = [record(step, forked_group(f"t{i}", "q", ("a", "391" if i else "0", "390"))) for i in range(2)]
            (folder / "rollouts").mkdir(exist_ok=True)
            write_records(folder / "rollouts" / f"step_{step:06d}.jsonl.gz", groups)
        config = {"run": {"name": name}, "policy": {"lr": rate}, "train": {"steps": 20}}
        (folder / "config.yaml").write_text(json.dumps(config))
    return [tmp_path / name for name in RATES]


def evaluated(folder: Path, right: int) -> Path:
    """An evaluation of 8 tasks, of which the first `right` are right."""
    folder.mkdir()
    info = BenchmarkInfo(description="", splits=("test",), metrics=("accuracy",), source="", licence="")
    header = Header(model=folder.name, k=1, rules={}, settings={}, benchmarks={"sums": info}, versions={}, plugins=[])
    partial = PartialResults(folder / "results.json", header)
    for i in range(8):
        task = Task(id=str(i), prompt=user_prompt("q"), answer=("1",))
        group = Group(task=task, rollouts=(Rollout(id="0", task=task, segments=(), stop=StopReason.ANSWER),))
        partial.add(task_result("sums", group, [Judgement(scores={"accuracy": float(i < right)})]))
    partial.finish()
    return folder


def test_runs_are_compared_by_settings_curves_and_sentences(trained: list[Path]) -> None:
    found = comparison(trained)
    assert found["labels"] == ["slow", "fast"]
    assert found["settings"] == [["policy.lr", "1e-06", "1e-05"]]  # the name is no setting
    short = {title: values for title, *values in found["in_short"]}
    assert short["steps"] == ["20 of 20", "20 of 20"]
    assert short["reward"][1].startswith("0.340 ± ") and "0.790" in short["reward"][1]
    (training,) = found["sections"]
    curves = {curve["name"]: curve for curve in training["curves"]}
    assert not curves["reward/mean"]["same"] and curves["rollout/turns_mean"]["same"]
    assert [line["label"] for line in curves["reward/mean"]["lines"]] == ["slow", "fast"]
    assert curves["reward/mean"]["share"] and curves["reward/mean"]["lines"][0]["half"][0] > 0
    assert found["evaluations"] == []


def test_evaluations_are_compared_by_task(tmp_path: Path) -> None:
    (pair,) = comparison([evaluated(tmp_path / "before", 2), evaluated(tmp_path / "after", 6)])["evaluations"]
    (row,) = pair["rows"]
    assert (pair["before"], pair["after"], row["difference"], row["won"], row["lost"]) == ("before", "after", 0.5, 4, 0)
    low, high = row["interval"]
    assert low < 0.5 < high


def test_what_cannot_be_compared_is_refused(trained: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^report: .* are the same run; give each once$"):
        comparison([trained[0], trained[0] / "." / "../slow"])
    with pytest.raises(ConfigError, match=r"^report: 9 runs; from 2 to 8 can be drawn over each other$"):
        comparison([tmp_path / str(i) for i in range(9)])
    with pytest.raises(ConfigError, match=r"^report: slow and measured share neither a metric nor a benchmark"):
        comparison([trained[0], evaluated(tmp_path / "measured", 1)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty has neither metrics nor results; has the run started"):
        comparison([trained[0], tmp_path / "empty"])


def test_the_page_stands_beside_the_runs_and_replaces_no_other_file(trained: list[Path], tmp_path: Path) -> None:
    assert write_comparison(trained) == tmp_path / "compare-slow-fast.html"
    assert write_comparison(trained, tmp_path / "x" / "c.html") == tmp_path / "x" / "c.html"
    (tmp_path / "compare-slow-fast.html").write_text("precious")
    with pytest.raises(ConfigError, match=r"is there already and is not a report of Ramet's"):
        write_comparison(trained)
    assert (tmp_path / "compare-slow-fast.html").read_text() == "precious"


@pytest.mark.browser
def test_a_browser_draws_a_line_for_each_run(trained: list[Path], open_page: Callable[..., Any]) -> None:
    page = open_page(write_comparison(trained))
    assert page.facts["ready"] == "1" and page.facts["errors"] == "0"
    assert "Refused" not in page.console and "Uncaught" not in page.console
    shown = page.html.all("main")[0]
    assert [e.text for e in shown.all("h2")] == ["In short", "Training", "Settings that differ (1)"]
    assert [e.text for e in shown.all("li", **{"class": "key"})] == ["slow", "fast"]
    (reward,) = [e for e in shown.all("figure") if "reward/mean" in e.text]
    lines = [e.attributes["class"] for e in reward.all("path") if e.attributes["class"].startswith("line")]
    assert lines == ["line c0", "line c1"]
    (picture,) = reward.all("svg")
    assert re.search("slow from 0.25 at step 1 to 0.25 at step 20.*fast from 0.28", picture.attributes["aria-label"])
