"""`ramet data inspect`: numbers that agree with the file, and text that cannot harm a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.config.schema import ColumnsConfig
from ramet.data.inspect import inspect_files, lengths, type_of

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
    (found,) = inspect_files([file], ColumnsConfig())
    assert (found.rows, len(found.tasks), found.repaired) == (6, 4, 1)
    assert [problem.split(", ")[1].rstrip(":") for problem in found.bad] == ["row 4", "row 6: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"]  # fmt: skip  # noqa: E501
    assert found.sources == {"a": 3, "b": 1}
    assert found.tools == {("python",): 1, None: 3}
    assert found.duplicates == ["row 3 repeats row 1"]
    assert found.answers == {"answer": 5}
    assert found.columns["answer"] == {"text": 3, "whole number": 1, "null": 1}
    assert found.columns["extra"] == {"{l: list of text, n: whole number}": 1}


def test_a_missing_column_is_a_problem_of_the_file(file: Path):
    (found,) = inspect_files([file], ColumnsConfig(prompt="question"))
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
    assert main(["data", "inspect", str(file), "--prompts", "2", "rollout_step.system_prompt=never"]) == 0
    out = capsys.readouterr().out
    assert "rows        6: 4 tasks, 2 bad, 1 repaired" in out
    assert "sources     a 3, b 1" in out
    assert "tools       all configured 3, [python] 1" in out
    assert "prompts     3 to 12 characters: median 3, mean 6, 95 % up to 12, 99 % up to 12\n" in out
    assert "duplicates  1 rows repeat an earlier prompt; row 3 repeats row 1" in out
    assert "prompt of tasks/0, answer '1'\n    | [user]\n    | one\n" in out
    assert "prompt of tasks/1, answer '4'" in out


def test_with_a_model_lengths_are_tokens_and_prompts_are_what_it_sees(file: Path, tmp_path: Path, capsys):
    from ramet.models.tiny import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path / "model")
    command = ["data", "inspect", str(file), "--model", str(tmp_path / "model")]
    assert main([*command, "data.max_prompt_tokens=9", "rollout_step.system_prompt=never"]) == 0
    out = capsys.readouterr().out
    assert "prompts     6 to 15 tokens" in out and "; 1 over data.max_prompt_tokens=9" in out
    assert "| <|user|>one<|end|><|assistant|>" in out
    assert main(command) == 0
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
    assert main(["data", "inspect", str(file), "data.columns.prompt=question"]) == 0
    assert "PROBLEM" in capsys.readouterr().out
    assert main(["data", "inspect", str(file), "data.columns.question=prompt", "train.steps=3"]) == 1
    err = capsys.readouterr().err
    assert "data.columns.question: no such key" in err and "`ramet data` does not build the section 'train'" in err
    assert main(["data", "inspect", "nowhere.parquet"]) == 1
    assert "nowhere.parquet: no such file" in capsys.readouterr().err
    assert main(["data", "inspect"]) == 1
    assert "which data?" in capsys.readouterr().err


def test_files_may_come_from_the_configuration(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "inspect", f"data.train=[{file}]"]) == 0
    assert str(file) in capsys.readouterr().out
    assert main(["data"]) == main(["data", "--help"]) == 0
    assert "ramet data inspect FILE" in capsys.readouterr().out


def test_benchmarks_among_the_data_are_no_files_to_inspect(file: Path, capsys):
    data = f"data.train=[{file},benchmark:arithmetic/train]"
    assert main(["data", "inspect", data, "rollout_step.system_prompt=never"]) == 0
    assert capsys.readouterr().out.startswith(f"{file}\n")
    assert main(["data", "inspect", "data.train=[benchmark:arithmetic/train]"]) == 1
    said = "error: which data? name files, as in `ramet data inspect tasks.parquet`, or data.train=[…]\n"
    assert capsys.readouterr().err == said
