"""No output may replace what the user has: models, tokenizers, data."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.config.checks import check
from ramet.config.compose import compose


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("exp1/model", "exp1/data", "tokenizer"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("exp1/data/a.jsonl", "exp1/data/b.jsonl", "template.jinja"):
        (tmp_path / file).write_text("{}\n")
    (tmp_path / "link").symlink_to("exp1")
    (tmp_path / "exp2").mkdir()
    (tmp_path / "exp2/linked").symlink_to(tmp_path / MODEL)
    (tmp_path / "again").hardlink_to(tmp_path / "exp1/data/b.jsonl")  # as one file under a name in other letters
    monkeypatch.chdir(tmp_path)
    return tmp_path


MODEL = "exp1/model"
OVERWRITTEN = "; nothing of yours is overwritten, so name another path"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["run.root=.", "run.name=exp1", f"model.path={MODEL}"], f"'exp1' holds model.path={MODEL}"),
        (["run.root=exp1", "run.name=model", f"model.path={MODEL}"], f"'exp1/model' is model.path={MODEL}"),
        (["run.root=.", "run.name=link", f"model.path={MODEL}"], f"'link' holds model.path={MODEL}"),
        (["run.root=.", "run.name=tokenizer", "model.tokenizer=tokenizer"], "'tokenizer' is model.tokenizer=tokenizer"),
        (
            ["run.root=.", "run.name=exp1", "data.train=['exp1/data/*.jsonl']"],
            "'exp1' holds data.train=exp1/data/a.jsonl",
        ),
        (["run.root=.", "run.name=exp2", "model.path=exp2/linked"], "'exp2' holds model.path=exp2/linked"),
        (["run.root=.", "run.name=again", "data.valid=[exp1/data/b.jsonl]"], "'again' is data.valid=exp1/data/b.jsonl"),
        (
            ["run.root=exp1", "run.name=data", "data.valid=[exp1/data/b.jsonl]"],
            "'exp1/data' holds data.valid=exp1/data/b.jsonl",
        ),
    ],
)
def test_a_run_directory_that_is_or_holds_an_input_is_refused(home: Path, overrides: list[str], expected: str):
    given = ["model.path=other", "data.train=[other.jsonl]", "rewards=[math]", *overrides]
    assert check(compose(given, job="train"), "train") == [f"run.root, run.name: {expected}{OVERWRITTEN}"]


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        (MODEL, [f"run.out: 'exp1/model' is model.path={MODEL}"]),
        ("exp1", [f"run.out: 'exp1' holds model.path={MODEL}", "run.out: 'exp1' holds sft.data=exp1/data/a.jsonl"]),
        ("runs", ["run.out: 'runs' holds the run directory runs/new"]),
    ],
)
def test_a_trained_model_takes_no_inputs_place(home: Path, out: str, expected: list[str]):
    given = [f"model.path={MODEL}", "sft.data=[exp1/data/a.jsonl]", "run.name=new", f"run.out={out}"]
    assert check(compose(given, job="sft"), "sft") == [f"{problem}{OVERWRITTEN}" for problem in expected]


@pytest.mark.parametrize("out", ["template.jinja", "results.json"])
def test_results_take_no_inputs_place(home: Path, out: str):
    (home / "results.json.partial.jsonl").write_text("{}\n")
    template = "template.jinja" if out == "template.jinja" else "results.json.partial.jsonl"
    given = [f"model.path={MODEL}", "benchmarks=[arithmetic]", f"run.out={out}", f"model.chat_template={template}"]
    assert check(compose(given, job="eval"), "eval") == [
        f"run.out: {template!r} is model.chat_template={template}{OVERWRITTEN}"
    ]


def test_inputs_beside_the_outputs_are_no_problem(home: Path):
    given = [f"model.path={MODEL}", "data.train=[exp1/data/a.jsonl]", "rewards=[math]", "run.root=exp1", "run.name=mod"]
    assert check(compose(given, job="train"), "train") == []
