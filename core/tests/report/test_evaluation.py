"""The report of an evaluation: what its first page says, which rollouts are in the file, and what a browser shows."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core.tests.report.conftest import byte_tokenizer, call, segment

from ramet.errors import ConfigError
from ramet.evaluate.header import Header
from ramet.evaluate.partial import PartialResults
from ramet.evaluate.stored import stored_evaluation
from ramet.evaluate.tasks import Judgement, group_record, task_result
from ramet.helpers.openai.exchanges import ChatExchange
from ramet.report import html
from ramet.report.evaluation import evaluation_data
from ramet.report.html import write_report
from ramet.types import (
    BenchmarkInfo,
    CallStatus,
    Fault,
    Group,
    Rollout,
    SegmentKind,
    StopReason,
    Task,
    user_prompt,
)

INFO = BenchmarkInfo(description="", splits=("test",), metrics=("judge", "em"), source="", licence="", judged=True)
HOSTILE = "</script><img src=x onerror='document.documentElement.dataset.pwned=1'>"
ASKED = ChatExchange(
    client="benchmarks.sums.params.judge.server",
    prompt="equivalence_v1",
    messages=user_prompt("Is 390 the same as 391?"),
    parameters={"temperature": 0},
    model="judge-7b",
    reply=f"No. {HOSTILE}\nVERDICT: incorrect",
    finish="stop",
    accepted=True,
)


def played(task: Task, number: int, *, tools: bool) -> Rollout:
    """Rollout 0 is right; of the others every third is masked, and one of them was cut short in its tool call."""
    prompt = segment(SegmentKind.PROMPT, 0, f"<|user|>{task.question}<|assistant|>")
    answer = "391" if number == 0 else "390"
    end = segment(SegmentKind.TURN, int(tools), f"<answer>{answer}</answer>")
    if number % 3 == 2:
        lost = call(0, "the sandbox did not start", status=CallStatus.INFRA)
        return Rollout(
            id=str(number), task=task, segments=(prompt, segment(SegmentKind.TURN, 0, "<python>1</python>")),
            tool_calls=(lost,), fault=Fault(where="tool:python", message="the sandbox did not start"),
            stop=StopReason.FAULT,
        )  # fmt: skip
    turns = (segment(SegmentKind.TURN, 0, "<python>17 * 23</python>"), segment(SegmentKind.RESULT, 0, "391"))
    return Rollout(
        id=str(number), task=task, segments=(prompt, *(turns if tools else ()), end), answer=answer,
        tool_calls=(call(0, "391"),) if tools else (), stop=StopReason.ANSWER,
    )  # fmt: skip


def judged(rollout: Rollout) -> Judgement:
    right = float(rollout.answer == "391")
    if rollout.fault is not None:
        return Judgement()
    scores: dict[str, float | None] = {"judge": None if rollout.id == "4" else right, "em": right}
    return Judgement(scores=scores, asked=() if right else (ASKED,))


def evaluate(folder: Path, *names: str, k: int = 5, tools: bool = True, finish: bool = True) -> Path:
    """Two sources of two tasks each in every benchmark."""
    header = Header(
        model="models/tiny", k=k, rules={}, settings={}, benchmarks={name: INFO for name in names},
        versions={}, plugins=[],
    )  # fmt: skip
    partial = PartialResults(folder / "results.json", header)
    for name in names:
        for i in range(4):
            task = Task(
                id=f"{name}/{i}", prompt=user_prompt(f"{i}: what is 17 * 23?"), answer=("391",),
                data_source=("easy", "hard")[i % 2],
            )  # fmt: skip
            group = Group(task=task, rollouts=tuple(played(task, number, tools=tools) for number in range(k)))
            found = [judged(rollout) for rollout in group.rollouts]
            partial.add(task_result(name, group, found), group_record(group, [one.scores for one in found], "judge"))
    if finish:
        partial.finish()
    return folder


def embedded(page: Path, kind: str) -> list[Any]:
    found = re.findall(rf'data-kind="{kind}">(.*?)</script>', page.read_text(encoding="ascii"), re.DOTALL)
    return [json.loads(text) for text in found]


def test_scores_have_intervals_by_benchmark_and_source_and_what_is_missing_has_reasons(tmp_path: Path) -> None:
    found = stored_evaluation(evaluate(tmp_path, "sums") / "results.json")
    assert found is not None
    data = evaluation_data(found)
    assert (data["model"], data["k"], data["finished"], data["judges"]) == ("models/tiny", 5, True, [])
    (sums,) = data["benchmarks"]
    main, em = sums["metrics"]
    assert (main["name"], main["maj"], main["judged"]) == ("judge", 0.0, "12 of 20")
    assert main["avg"] == pytest.approx([1 / 3, 0.0]) and em["avg"] == pytest.approx([1 / 4, 0.0])
    assert main["passes"] == [[1, pytest.approx(1 / 3)], [2, pytest.approx(2 / 3)], [4, None], [5, None]]
    assert [(one["name"], one["n_tasks"], one["judged"]) for one in sums["sources"]] == [
        ("easy", 2, "6 of 10"), ("hard", 2, "6 of 10"),
    ]  # fmt: skip
    assert sums["missing"] == [["tool:python: the sandbox did not start", 4], ["not judged", 4]]
    assert sums["curve"] == {"name": "sums", "x": [1, 2, 3], "y": pytest.approx([1 / 3, 2 / 3, 1.0])}
    assert sums["tools"]["calls"] == {"python": 20}
    assert sums["ends"] == ["100%", "0%"] and main["bounds"] == pytest.approx([1 / 5, 3 / 5])


def test_without_tools_and_with_one_rollout_each_there_is_no_curve(tmp_path: Path) -> None:
    found = stored_evaluation(evaluate(tmp_path, "sums", k=1, tools=False) / "results.json")
    assert found is not None
    (sums,) = evaluation_data(found)["benchmarks"]
    assert (sums["curve"], sums["tools"]["calls"], sums["missing"]) == (None, {}, [])
    assert write_report(tmp_path).is_file()


def test_a_running_evaluation_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    folder = evaluate(tmp_path, "sums", finish=False)
    partial = folder / "results.json.partial.jsonl"
    whole = partial.read_bytes()
    partial.write_bytes(whole + b'{"benchmark": "su')  # what a process is writing now
    page = write_report(folder)
    (facts,) = embedded(page, "overview")
    assert facts["evaluation"]["finished"] is False and facts["evaluation"]["benchmarks"][0]["n_tasks"] == 4
    (groups,) = embedded(page, "step")
    assert [group["task"] for group in groups] == [f"sums/{i}" for i in range(4)]
    assert partial.read_bytes() == whole + b'{"benchmark": "su'  # reports only read


def test_broken_files_are_told_and_nothing_else_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = evaluate(tmp_path, "sums")
    (folder / "results.rollouts.jsonl.gz").unlink()
    (folder / "results.judge-odd.json").write_text("[]")
    with caplog.at_level(logging.WARNING):
        page = write_report(folder)
    (facts,) = embedded(page, "overview")
    assert facts["evaluation"]["benchmarks"][0]["name"] == "sums" and embedded(page, "step") == []
    (note,) = facts["notes"]
    assert note.startswith("Rollouts of the evaluation could not be read (ConfigError: ")
    assert "results.judge-odd.json could not be read" in caplog.text
    (folder / "results.json").write_text("[]")
    with pytest.raises(ConfigError, match="no metrics in"):
        write_report(folder)


def test_every_benchmark_has_its_share_of_a_large_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = evaluate(tmp_path, "a", "b")
    sizes = [len(json.dumps(groups, separators=(",", ":"))) for groups in embedded(write_report(folder), "step")]
    monkeypatch.setattr(html, "MAX_BYTES", sum(sizes) * 6 // 10)
    page = write_report(folder)
    assert [{group["benchmark"] for group in groups} for groups in embedded(page, "step")] == [{"a"}, {"b"}]
    notes = embedded(page, "overview")[0]["notes"]
    assert [note.partition(":")[0] for note in notes] == ["a", "b"]
    assert all("only its first tasks are shown" in note for note in notes)


def test_validations_have_their_place_beside_the_steps(run: Path) -> None:
    (file,) = [path for path in (run / "rollouts").iterdir() if "000020" in path.name]
    file.rename(file.with_name("valid_000020.jsonl.gz"))
    kinds = [(groups[0]["kind"], groups[0]["step"]) for groups in embedded(write_report(run), "step")]
    assert kinds == [("step", 1), ("valid", 20), ("step", 40)]


@pytest.mark.browser
def test_a_browser_shows_scores_trees_and_what_judges_said(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    folder = evaluate(tmp_path, "sums", "words")
    (folder / "tokenizer").mkdir()
    byte_tokenizer().save(str(folder / "tokenizer" / "tokenizer.json"))
    report = write_report(folder)
    page = open_page(report)
    assert (page.facts["errors"], page.facts["ready"]) == ("0", "1")
    shown = page.html.all("section", data_evaluation=None)[0]
    assert [head.text for head in shown.all("h3")] == [
        "By data source (main metric)", "pass@k (main metric)", "Tools", "Rollouts without a score",
    ]  # fmt: skip
    assert len(shown.all("svg", **{"class": "interval"})) == 2 * 2 + 2 * 2
    curves = shown.all("figure", data_curve=None)
    assert len(curves) == 2
    assert all(
        [tick.text for tick in curve.all("text", text_anchor="end")][:3] == ["0", "0.5", "1"] for curve in curves
    )
    assert [head.text for head in shown.all("thead")[0].all("th")][-2:] == ["scored", "tasks"]
    assert "12 of 20" in shown.text and "tool:python: the sandbox did not start" in shown.text
    tasks = open_page(report, "#tasks")
    assert [head.text for head in tasks.html.all("thead")[0].all("th")][:3] == ["benchmark", "task", "source"]
    assert len(tasks.html.all("tr", data_row=None)) == 8
    group = open_page(report, "#e0/g5/r1")
    nodes = {e.attributes["data-rollout"]: e.text for e in group.html.all("details", data_rollout=None)}
    assert list(nodes) == ["0", "1", "2", "3", "4"]
    assert "score 1" in nodes["0"] and "masked" in nodes["2"] and "not judged" in nodes["4"]
    (asked,) = [e for e in group.html.all("details", data_judge=None) if e.within(_node(group, "1"))]
    assert "judge-7b, equivalence_v1" in asked.text and HOSTILE in asked.text
    assert "pwned" not in group.facts and group.facts["errors"] == "0"
    assert "advantage" not in group.html.all("main")[0].all("svg")[0].text


def _node(page: Any, rollout: str) -> Any:
    (node,) = page.html.all("details", data_rollout=rollout)
    return node
