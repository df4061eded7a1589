"""docs/configuration.md and docs/data.md are true: commands print what they say, tables name what there is."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.config.compose import compose
from ramet.config.keys import JOBS
from ramet.data.layout import Columns
from ramet.data.tasks import load_tasks

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = (ROOT / "docs/configuration.md").read_text()
DATA = (ROOT / "docs/data.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Command and what it prints."""
    for block in blocks(page, "console"):
        command, _, output = block.partition("\n")
        yield command.removeprefix("$ ramet "), output


def run(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    main(shlex.split(command))
    said = capsys.readouterr()
    return said.out + said.err


@pytest.mark.parametrize(("command", "output"), list(commands(CONFIGURATION)), ids=lambda text: text[:30])
def test_a_command_prints_what_the_page_says(command: str, output: str, monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    assert run(command, capsys).replace(str(ROOT), "…") == output


def test_the_inspection_prints_what_the_page_says(tmp_path: Path, monkeypatch, capsys) -> None:
    rows = [
        {"prompt": "What is 6*7?", "answer": "42", "tools": ["python"]},
        {"prompt": [{"role": "user", "content": "Who, in \boxed{}?"}], "reward_model": {"ground_truth": "me"}},
        {"prompt": "bad", "answer": None},
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    ((command, output),) = commands(DATA)
    assert run(command, capsys) == output


def test_both_layouts_of_the_page_give_the_same_question_and_answer(tmp_path: Path) -> None:
    for number, row in enumerate(blocks(DATA, "json")):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(row)
        (task,) = load_tasks([str(path)]).tasks
        assert (task.question, task.answer) == ("What is 6*7?", ("42",))


def test_the_columns_of_the_page_are_those_that_can_be_named() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", DATA, re.MULTILINE)) | set(re.findall(r"data\.columns\.(\w+)", DATA))
    assert named == set(Columns.__dataclass_fields__)


def test_the_table_names_every_section_and_the_jobs_that_build_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (x?) ?\| (x?) ?\| (x?) ?\|$", CONFIGURATION, re.MULTILINE)
    jobs = ("train", "sft", "eval")
    said = {name: {job for job, mark in zip(jobs, marks, strict=True) if mark} for name, *marks in rows}
    true = {name: {job for job in jobs if name in JOBS[job]} for job in jobs for name in JOBS[job]}
    assert said == true


def test_the_experiment_and_the_preset_of_the_page_compose(tmp_path: Path, monkeypatch) -> None:
    experiment, preset = blocks(CONFIGURATION, "yaml")
    for name, text in (("experiment", experiment), ("policy_loss", preset)):
        (tmp_path / "hydra_configs" / name).mkdir(parents=True)
        (tmp_path / "hydra_configs" / name / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    config = compose(["model.path=m", "experiment=mine", "policy_loss=mine"], job="train").config
    assert (config.train.steps, config.branch_policy.name, list(config.rewards)) == (200, "arpo", ["math"])
    assert config.tools["python"].timeout_s == 20
    assert config.policy_loss.params.clip_high == 0.28
