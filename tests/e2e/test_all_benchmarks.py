"""docs/evaluation.md: one command measures a model on the samples of all published benchmarks."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.plugins import load_plugins

PAGE = (Path(__file__).resolve().parents[2] / "docs/evaluation.md").read_text(encoding="utf-8")
NAMES = [
    "aime24", "aime25", "math500", "gsm8k", "math", "hotpotqa", "two_wiki", "musique", "bamboogle", "webwalker", "gaia",
    "hle", "xbench", "simpleqa",
]  # fmt: skip
pytestmark = pytest.mark.skipif(
    not set(NAMES) <= set(load_plugins().registries.benchmarks.names),
    reason="the plugin ramet-benchmarks is not installed",
)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    [block] = re.findall(r"^```\n(ramet tiny-model[^`]*benchmarks_sample[^`]*)^```", PAGE, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    yield [shlex.split(line)[1:] for line in block.replace("\\\n", " ").splitlines()]


def test_one_command_measures_the_samples_of_all_benchmarks(
    commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in commands:
        assert main(command) == 0
    body = json.loads((tmp_path / "runs/samples/results.json").read_text())
    assert [one["name"] for one in body["results"]] == NAMES
    assert all(one["n_judged"] == one["n_rollouts"] == 3 for one in body["results"])
    rows = re.findall(r"^│ ?(\w+) *│ ?(\w+)", capsys.readouterr().out, re.MULTILINE)
    assert list(dict.fromkeys(name for name, _ in rows)) == NAMES
    assert {metric for name, metric in rows if name == "hotpotqa"} == {"em", "f1"}
