"""`ramet data inspect` of SFT traces: checked as by `ramet sft`, alike rows in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.cli import main

RESULT = " <result>\n42\n</result>"
SOUND = f"<think>t</think><python>6*7</python>{RESULT}<answer>42</answer>"
BROKEN = "<think>t</think><python>6*7</python> <result>\n42<answer>42</answer>"


def trace(reply: str, question: str = "6*7?") -> dict[str, list[dict[str, str]]]:
    return {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": reply}]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [trace(SOUND, f"{i % 4}*7?") for i in range(5)] + [trace(BROKEN)] * 4 + [{"conversations": []}]
    path = tmp_path / "traces.json"
    path.write_text(json.dumps(rows), encoding="utf-8-sig")
    return path


@pytest.mark.usefixtures("python_tool")
def test_traces_are_known_and_alike_rows_are_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", str(file), "tools=python"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        str(file),
        "  rows        10: 5 traces for `ramet sft`, 4 malformed, 1 unreadable",
        "  exchanges   9",
        "  calls       traces with a result, by tool: python 5",
        "  duplicates  4 rows repeat the conversation of an earlier one: rows 1, 5; rows 6, 7, 8 and 1 more",
        f"  bad row     {file}, rows 6, 7, 8; and 1 more: <result> is not closed",
        f"  bad row     {file}, row 10: 'conversations' is empty",
        "",
        "1 file, 10 rows: 9 conversations; 5 bad rows (left out with sft.malformed=skip); warnings: duplicates",
    ]
    assert main(["data", "inspect", f"sft.data={file}", "tools=python", "sft.malformed=skip"]) == 0
    said = "1 file, 10 rows: 9 conversations; no problems; 5 bad rows left out; warnings: duplicates"
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_results_that_would_be_trained_on_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps(trace(SOUND)) + "\n")
    assert main(["data", "inspect", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    warning, *others = lines[4:]
    assert warning.startswith("  unmasked    ") and f"<python> in 1 ({file}, row 1)" in warning
    assert others == ["", "1 file, 1 row: 1 conversation; no problems; warnings: unmasked"]
    assert main(["data", "inspect", str(file), "sft.mask_tags=python"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 file, 1 row: 1 conversation; no problems"


def test_tasks_and_traces_may_be_looked_at_together(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks, torn = file.with_name("tasks.jsonl"), file.with_name("torn.json")
    tasks.write_text('{"prompt": "1+1?", "answer": "2"}\n')
    torn.write_text(json.dumps([trace(SOUND)])[:-1])
    assert main(["data", "inspect", str(file), str(torn), str(tasks), "sft.malformed=keep", "--prompts", "0"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in (str(file), str(torn), str(tasks))] == [str(file), str(torn), str(tasks)]
    assert lines[-1] == (
        "3 files, 11 rows: 1 task, 9 conversations; 1 bad row (left out with sft.malformed=skip) and 1 other problem; "
        "warnings: unmasked, duplicates"
    )


def test_rows_whose_prompt_is_named_messages_are_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "6*7?"}], "answer": "42"}) + "\n")
    assert main(["data", "inspect", str(file), "data.columns.prompt=messages", "--prompts", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 file, 1 row: 1 task; no problems"
    assert main(["data", "inspect", str(file), "--prompts", "-1"]) == 1
    assert capsys.readouterr().err.startswith("error: --prompts=-1: ")


def test_the_home_of_nobody_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", "~no-such-user/tasks.jsonl"]) == 1
    said = f"error: ~no-such-user/tasks.jsonl: no such file (working directory: {Path.cwd()})\n"
    assert capsys.readouterr().err == said


def test_rows_of_a_named_set_are_counted_by_file_and_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a", "b"):
        rows = [{"conversations": []}, trace(BROKEN), trace(f"<answer>{name}</answer>")]
        (folder / f"{name}.json").write_text(json.dumps(rows))
    entry = {"file_name": "folder", "formatting": "sharegpt", "num_samples": 8}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"both": entry}))
    assert main(["data", "inspect", f"{tmp_path}/dataset_info.json:both"]) == 1
    out = capsys.readouterr().out
    assert "6: 4 traces for `ramet sft`, 2 malformed, 2 unreadable" in out
    assert f"bad row     {folder}/a.json, row 2; {folder}/b.json, row 2: <result> is not closed" in out
    assert "1 row repeats the conversation of an earlier one: rows 2, 2" in out
