"""README.md: its commands exist, its ten lines train, and its results are those that were recorded."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.cli.commands import COMMANDS
from ramet.plugins.extensions import COMMANDS as ADDED
from ramet.plugins.extensions import extensions
from ramet.tracking.jsonl import read_metrics

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
LINES = [line for kind, block in BLOCKS if not kind for line in block.replace("\\\n", " ").splitlines()]
[(FILE, REWARD)] = re.findall(r"^`(\w+\.py)`\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
[TRAIN] = [line for line in LINES if line.startswith("ramet train")]
MOST_LINES = 200
TINY = {  # what a test has in place of the hub's model and data
    "model.path": "tiny",
    "data.train": "[benchmark:gsm8k/sample]",
    "rollout.max_response_tokens": "32",
}


def words(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def test_the_front_page_stays_short() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES


def test_every_command_exists_and_no_list_is_open_to_the_shell() -> None:
    """zsh takes an unquoted `[…]` for a pattern."""
    commands = [words(line)[1] for line in LINES if line.startswith("ramet ")]
    assert {"train", "eval", "report", "play", "demo"} <= set(commands)
    assert set(commands) <= {*COMMANDS, *(entry.name for entry in extensions(ADDED))}
    assert [line for line in LINES if re.search(r"(?<!['\w.])[\w.]+=\[", line)] == []


def test_the_installation_is_that_of_the_metapackage() -> None:
    [line] = [line for line in LINES if "pip install" in line]
    assert re.search(r"^wheels:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "plugins/all/pyproject.toml").read_text())["project"]
    assert f"make wheels && pip install --find-links dist {project['name']}" in line
    assert {f"{project['name']}[{extra}]" for extra in project["optional-dependencies"]} == set(
        re.findall(r"[\w-]+\[\w+\]", line)
    )


def test_the_ten_lines_train_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text(REWARD)
    assert main(["tiny-model", "tiny"]) == 0
    keys = [word if (key := word.partition("=")[0]) not in TINY else f"{key}={TINY[key]}" for word in words(TRAIN)[2:]]
    assert (
        main(
            [
                "train",
                *keys,
                "train.steps=1",
                "train.tasks_per_step=2",
                "train.minibatches=1",
                "data.max_prompt_tokens=900",
                "rollout_step.tools_in_template=false",  # the tiny model's template describes none
            ]
        )
        == 0
    )
    [step] = read_metrics(tmp_path / "runs/first/metrics.jsonl")
    assert step.metrics["reward/custom"] >= 0 and step.metrics["rollout/masked_share"] == 0


@pytest.mark.parametrize(
    ("answer", "calls", "score"), [("1,200", [], 1.0), (None, ["ok"], 0.1), ("8", ["error"], 0.0), ("8", [], 0.0)]
)
def test_the_reward_does_what_it_says(answer: str | None, calls: list[str], score: float) -> None:
    module: dict[str, object] = {}
    exec(REWARD, module)
    extra = {"final_answer": answer, "tool_calls": [{"status": status} for status in calls]}
    assert module["compute_score"]("gsm8k", "", "1200", extra) == score  # type: ignore[operator]


def text(estimate: dict[str, float], sign: str = "") -> str:
    return f"{estimate['mean']:{sign}.3f} ± {estimate['half_width']:.3f}"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_row_of_the_results_is_what_was_recorded(seed: int) -> None:
    proof = json.loads((ROOT / f"docs/experiments/quickstart_smollm2_proof{seed}.json").read_text())
    before, after = (text(proof["measured"][name]["estimate"]) for name in ("after SFT", "after RL"))
    assert f"| {seed} | {before} | {after} | **{text(proof['differences']['RL - SFT'], '+')}** |" in PAGE


@pytest.mark.parametrize(("name", "where"), [("h200", "one H200, {seconds} s"), ("agent_seed1", "2 cores, not timed")])
def test_so_are_those_of_a_gpu_and_of_an_agent(name: str, where: str) -> None:
    run = json.loads((ROOT / f"docs/experiments/quickstart_smollm2_{name}.json").read_text())
    before, after = (text(run[phase]["held out"]["estimate"]) for phase in ("after_sft", "after_rl"))
    where = where.format(seconds=int(sum(run["seconds_by_phase"].values())))
    assert f"| {before} | {after} | **{text(run['rl_minus_sft']['held out'], '+')}** | {where}" in PAGE
