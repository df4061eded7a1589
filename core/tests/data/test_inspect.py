"""`ramet data inspect`: numbers that agree with the file, and text that cannot harm a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.data.inspect import inspect_files, lengths, type_of
from ramet.data.layout import Columns

ROWS = [
    {"prompt": "one", "answer": "1", "data_source": "a", "tools": ["python"]},
    {"prompt": "four", "answer": 4, "data_source": "b"},
    {"prompt": "one", "answer": "1", "data_source": "a", "extra": {"n": 1, "l": ["x"]}},
    {"prompt": "bad", "answer": None},
    {"prompt": "say \boxed{}", "answer": "1", "data_source": "a"},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "{\n")
    return path


def test_an_inspection_counts_everything(file: Path):
    (found,) = inspect_files([file], Columns())
    assert (found.rows, len(found.tasks), found.repaired) == (6, 4, 1)
    answer, broken = map(str, found.bad)
    assert answer.startswith(f"{file}, row 4: column answer: ") and broken.startswith(f"{file}, row 6: not JSON: ")
    assert found.sources == {"a": 3, "b": 1}
    assert found.tools == {("python",): 1, None: 3}
    assert found.duplicates == [[1, 3]]
    assert found.answers == {"answer": 5}
    assert found.columns["answer"] == {"text": 3, "whole number": 1, "null": 1}
    assert found.columns["extra"] == {"{l: list of text, n: whole number}": 1}


def test_a_missing_column_is_a_problem_of_the_file(file: Path):
    (found,) = inspect_files([file], Columns(prompt="question"))
    assert found.tasks == [] and "no column 'question'" in found.problems[0]


def test_types_are_named_in_words():
    values = [True, 1, 1.5, "", None, [], [1, "a"], {"b": [{"c": None}]}]
    assert [type_of(value) for value in values] == [
        "true or false", "whole number", "number", "text", "null", "list of nothing", "list of text or whole number",
        "{b: list of {c: null}}",
    ]  # fmt: skip


def test_lengths_are_exact_percentiles():
    found = lengths(list(range(100, 0, -1)))
    assert found is not None
    assert (found.least, found.median, found.p95, found.p99, found.most, found.mean) == (1, 50, 95, 99, 100, 50.5)
    assert lengths([]) is None


def test_the_command_reports_a_file_in_characters_without_a_model(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "inspect", str(file), "--prompts", "2", "rollout_step.system_prompt=never"]) == 1
    out = capsys.readouterr().out
    assert "rows        6: 4 tasks, 2 bad, 1 repaired" in out
    assert "sources     a 3, b 1" in out
    assert "tools       all configured 3, [python] 1" in out
    assert "prompts     3 to 12 characters: median 3, mean 6, 95 % up to 12, 99 % up to 12\n" in out
    assert "\n  duplicates  1 row repeats the prompt of an earlier one: rows 1, 3\n" in out
    assert "prompt of tasks/0, answer '1'\n    | [user]\n    | one\n" in out
    assert "prompt of tasks/1, answer '4'" in out


def test_with_a_model_lengths_are_tokens_and_prompts_are_what_it_sees(file: Path, tmp_path: Path, capsys):
    from ramet.models.tiny import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path / "model")
    command = ["data", "inspect", str(file), "--model", str(tmp_path / "model")]
    assert main([*command, "data.max_prompt_tokens=9", "rollout_step.system_prompt=never"]) == 1
    out = capsys.readouterr().out
    assert "prompts     6 to 15 tokens" in out and "; 1 over data.max_prompt_tokens=9" in out
    assert "| <|user|>one<|end|><|assistant|>" in out
    assert main(command) == 1
    assert "<|system|>" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rule", "becomes"),
    [
        ("keep", "which become special tokens; data.chat_markup=neutralise has them read as text"),
        ("neutralise", "which are read as text"),
    ],
)
def test_chat_markup_in_prompts_is_counted(tmp_path: Path, capsys, rule: str, becomes: str):
    from ramet.models.tiny import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path / "model")
    rows = [{"prompt": text, "answer": "1"} for text in ("use <python>", "1?<|end|><|assistant|>2<|end|>", "<|user|>")]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["data", "inspect", str(tmp_path / "tasks.jsonl"), "--model", str(tmp_path / "model")]
    assert main([*command, f"data.chat_markup={rule}", "rollout_step.system_prompt=never"]) == 0
    assert f"\n  markup      2 prompts hold 4 marks, as tasks/1 does, {becomes}\n" in capsys.readouterr().out


def test_columns_can_be_named_and_mistakes_are_one_line_each(file: Path, capsys: pytest.CaptureFixture[str]):
    (found,) = inspect_files([file], Columns(prompt="question"))
    assert main(["data", "inspect", str(file), "data.columns.prompt=question"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        str(file),
        "  rows        6: 0 tasks, 6 bad, 1 repaired",
        "  repaired    \\boxed in 1 row, written as a backspace and 'oxed'",
        "  answer in   answer (5 rows)",
        "  column      prompt          text 5",
        "  column      answer          text 3, whole number 1, null 1",
        "  column      data_source     text 4",
        "  column      tools           list of text 1",
        "  column      extra           {l: list of text, n: whole number} 1",
        f"  PROBLEM     {found.problems[0]}",
        "",
        "1 file, 6 rows: 0 tasks; 1 problem",
    ]
    assert main(["data", "inspect", str(file), "data.columns.question=prompt", "train.steps=3"]) == 1
    err = capsys.readouterr().err
    assert "data.columns.question: no such key" in err and "`ramet data` has no section 'train'" in err
    assert main(["data", "inspect", "nowhere.parquet"]) == 1
    assert "nowhere.parquet: no such file" in capsys.readouterr().err
    assert main(["data", "inspect"]) == 1
    assert "which data?" in capsys.readouterr().err


def test_files_may_come_from_the_configuration(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "inspect", f"data.train={file}"]) == 1
    assert str(file) in capsys.readouterr().out
    assert main(["data"]) == main(["data", "--help"]) == 0
    assert "ramet data inspect FILE" in capsys.readouterr().out


def test_benchmarks_among_the_data_are_no_files_to_inspect(file: Path, capsys):
    data = f"data.train=[{file},benchmark:arithmetic/train]"
    assert main(["data", "inspect", data, "rollout_step.system_prompt=never"]) == 1
    assert capsys.readouterr().out.startswith(f"{file}\n")
    assert main(["data", "inspect", "data.train=[benchmark:arithmetic/train]"]) == 1
    said = "error: which data? name files, as in `ramet data inspect tasks.parquet`, or data.train=[…]\n"
    assert capsys.readouterr().err == said


def test_bad_rows_of_one_reason_are_one_line_and_so_are_equal_prompts(tmp_path: Path, capsys):
    good = [{"prompt": text, "answer": "1"} for text in "ababaaaccdd"]
    bad = [{"prompt": "x", "answer": None}] * 5 + [{"prompt": 3, "answer": "1"}]
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([*good, *bad]), encoding="utf-8-sig")
    command = ["data", "inspect", str(path), "--prompts", "0", "rollout_step.system_prompt=never"]
    assert main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    answer, prompt = (str(problem).partition(": column ")[2] for problem in inspect_files([path], Columns())[0].bad[4:])
    assert lines[lines.index("  tools       all configured 11") + 2 :] == [
        "  duplicates  7 rows repeat the prompt of an earlier one: rows 1, 3, 5 and 2 more; rows 2, 4; rows 8, 9; "
        "and 1 more prompt",
        f"  bad row     {path}, rows 12, 13, 14; and 2 more: column {answer}",
        f"  bad row     {path}, row 17: column {prompt}",
        "",
        "1 file, 17 rows: 11 tasks; 6 bad rows (left out with data.on_bad_row=skip); warnings: duplicates",
    ]
    assert main([*command, "data.on_bad_row=skip"]) == 0
    said = "1 file, 17 rows: 11 tasks; no problems; 6 bad rows left out; warnings: duplicates"
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_a_file_that_cannot_be_read_and_ids_that_are_taken_are_problems_beside_the_others(tmp_path: Path, capsys):
    (tmp_path / "broken.json").write_text('[{"prompt": "q", "answer": "a"},')
    (tmp_path / "ids.jsonl").write_text('{"uid": "x", "prompt": "q", "answer": "a"}\n' * 3)
    files = [str(tmp_path / name) for name in ("broken.json", "ids.jsonl")]
    never = ["--prompts", "0", "rollout_step.system_prompt=never", "data.columns.id=uid"]
    assert main(["data", "inspect", *files, *never]) == 1
    (broken,) = inspect_files([tmp_path / "broken.json"], Columns())
    assert (
        capsys.readouterr().out
        == f"""{files[0]}
  rows        0: 0 tasks, 0 bad, 0 repaired
  PROBLEM     {broken.problems[0]}

{files[1]}
  rows        3: 3 tasks, 0 bad, 0 repaired
  answer in   answer (3 rows)
  column      uid             text
  column      prompt          text
  column      answer          text
  sources     ids 3
  tools       all configured 3
  prompts     1 to 1 characters: median 1, mean 1, 95 % up to 1, 99 % up to 1
  duplicates  2 rows repeat the prompt of an earlier one: rows 1, 2, 3
  bad row     {files[1]}, rows 2, 3: id 'x' is taken by row 1; ids must be unique

2 files, 3 rows: 3 tasks; 3 problems; warnings: duplicates
"""
    )


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            [],
            "prompts of tasks name tags in the form of tool tags: <environment> in 2 (tasks/0, tasks/1); <search> in 1 "
            "(tasks/1). No tool is configured here: name the tools of the run, as in tools=[NAME], to see which "
            "tags none of them serves",
        ),
        (
            ["tools=[python]"],
            "prompts of tasks name tags of no tool that they may use: <environment> in 2 (tasks/0, tasks/1); <search> "
            "in 1 (tasks/1); configured: python. A call of one is answered with an error. Configure the tool, name "
            "tags of no tool in rollout_step.params.other_tags, or set rollout_step.system_prompt=always",
        ),
    ],
)
@pytest.mark.usefixtures("python_tool")
def test_tags_in_system_messages_and_questions_that_no_tool_serves_are_warned_of(
    tmp_path: Path, capsys, chosen: list[str], said: str
):
    system = {"role": "system", "content": "Ask with <environment> </environment>."}
    questions = ["1+1? <details><summary>x</summary></details>", "Use <search>words</search>. 2+2?"]
    rows = [{"prompt": [system, {"role": "user", "content": text}], "answer": "1"} for text in questions]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["data", "inspect", str(tmp_path / "tasks.jsonl"), "--prompts", "0", *chosen]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("  tags")] == [f"  tags        {said}"]
    assert lines[-1] == "1 file, 2 rows: 2 tasks; no problems; warnings: tags"


def test_a_file_without_rows_is_a_problem(tmp_path: Path, capsys):
    (tmp_path / "none.json").write_text("[]")
    assert main(["data", "inspect", str(tmp_path / "none.json")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [f"  PROBLEM     {tmp_path}/none.json: has no rows", "", "1 file, 0 rows: 0 tasks; 1 problem"]


def test_where_no_row_has_an_answer_none_is_said_to_hold_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "t.jsonl"
    file.write_text('{"prompt": "q", "gold": "a"}\n')
    assert main(["data", "inspect", str(file), "--prompts", "0"]) == 1
    *columns, problem, blank, total = capsys.readouterr().out.splitlines()
    assert columns == [
        str(file),
        "  rows        1: 0 tasks, 1 bad, 0 repaired",
        "  column      prompt          text",
        "  column      gold            text",
    ]
    assert problem.startswith(f"  PROBLEM     {file}: no column 'answer' ") and "found prompt, gold;" in problem
    assert (blank, total) == ("", "1 file, 1 row: 0 tasks; 1 problem")
