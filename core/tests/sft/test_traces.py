from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.rollout.config import TagsConfig
from ramet.rollout.steps.tags import Tags
from ramet.sft.conversations import read_data
from ramet.sft.traces import TraceReport, check_traces

STEP = Tags(TagsConfig())
RESULT = " <result>\n42\n</result>"
SOUND = f"<think>t</think><python>6*7</python>{RESULT}<answer>42</answer>"


def reported(
    folder: Path, *replies: str | list[dict[str, str]], step: Any = STEP, tools: tuple[str, ...] = ("python",)
) -> TraceReport:
    rows = [reply if isinstance(reply, list) else [{"role": "assistant", "content": reply}] for reply in replies]
    file = folder / "t.jsonl"
    lines = [json.dumps({"messages": [{"role": "user", "content": "q"}, *turns]}) for turns in rows]
    file.write_text("\n".join(lines) + "\n")
    return check_traces(read_data([str(file)]), step, tools)


def rows(problems: Any) -> list[tuple[int, str]]:
    return [(problem.row, problem.reason) for problem in problems]


def test_malformed_rows_are_told_from_sound_ones(tmp_path: Path) -> None:
    report: TraceReport = reported(tmp_path, SOUND, SOUND + "</python>", SOUND)
    assert (report.rows, report.exchanges, report.bad_rows) == (3, 3, 1)
    assert rows(report.problems) == [(2, "</python> without <python> before it")]
    assert [one.row for one in report.sound] == [1, 3]
    assert report.calls == {"python": 2}
    assert report.warnings() == []


def test_results_as_turns_of_their_own_are_checked_with_the_calls_before_them(tmp_path: Path) -> None:
    def turns(call: str) -> list[dict[str, str]]:
        return [
            {"role": "assistant", "content": call},
            {"role": "tool", "content": "</result><answer>"},
            {"role": "assistant", "content": "<answer>42</answer>"},
        ]

    report = reported(tmp_path, turns("<search>q</search>"), turns("words"))
    [(row, problem)] = rows(report.problems)
    assert row == 2 and problem.startswith("<result> without ")
    assert report.unmasked == {}, "a turn of its own is masked whatever was called"
    assert report.calls == {"search": 1}


def test_results_of_tools_that_are_not_configured_are_a_warning(tmp_path: Path) -> None:
    search = SOUND.replace("python>", "search>")
    report = reported(tmp_path, SOUND, search, search, SOUND.replace("python>", "reader>"))
    assert report.problems == []
    file = tmp_path / "t.jsonl"
    assert report.warnings() == [
        "traces contain results of tools that are not configured, which are trained on as if the policy had written "
        f"them: <search> in 2 ({file}, rows 2, 3); <reader> in 1 ({file}, row 4). Name the tools in `tools`, or mask "
        "their results with sft.mask_tags=[search,reader]"
    ]
    assert reported(tmp_path, SOUND, search, tools=("python", "search")).warnings() == []


def test_a_missing_answer_is_a_warning_where_most_traces_have_one(tmp_path: Path) -> None:
    without = f"<python>6*7</python>{RESULT} It is 42."
    report = reported(tmp_path, SOUND, SOUND, without, "chat without tags")
    assert report.problems == []
    assert report.warnings() == [f"traces without an answer, which most others have: {tmp_path / 't.jsonl'}, row 3"]
    assert reported(tmp_path, without, without, SOUND).warnings() == []


def test_reasoning_that_the_prompt_opens_is_a_fault_where_most_traces_open_it(tmp_path: Path) -> None:
    unopened = SOUND.removeprefix("<think>")
    report = reported(tmp_path, SOUND, SOUND, unopened)
    assert rows(report.problems) == [(3, "reasoning is closed and not opened, unlike in most traces")]
    assert reported(tmp_path, unopened, unopened, SOUND).problems == []


def test_a_step_that_cannot_check_traces_lets_them_pass(tmp_path: Path, brackets: Any) -> None:
    report = reported(tmp_path, "<result>", step=brackets)
    assert (report.checked, report.problems, len(report.sound)) == (False, [], 1)


@pytest.mark.parametrize("content", ["1\n", "{}\n"])
def test_rows_that_hold_no_conversation_are_problems(tmp_path: Path, content: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("\n" + content)
    report = check_traces(read_data([str(file)]), STEP, [])
    assert [(problem.file, problem.row) for problem in report.problems] == [(str(file), 2)]
    assert report.sound == []


def test_unreadable_and_malformed_rows_are_listed_in_the_order_of_the_file(tmp_path: Path) -> None:
    unreadable = [{"role": "assistant", "content": ""}]
    report = reported(tmp_path, SOUND + "</python>", unreadable, SOUND + "</python>", unreadable)
    assert [row for row, _ in rows(report.problems)] == [1, 2, 3, 4]
