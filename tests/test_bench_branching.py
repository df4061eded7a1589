"""bench/branching trains an arm from a seed's checkpoint, skips what is finished, and reports what was stored."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench" / "branching"
FORKS = ("choices", "forks_at_choices", "rose_at_choices", "rose_elsewhere", "same_root_differ", "other_root_differ")
LATER = [[0, 0], [2, 0], [2, 2], [2, 1]]  # forks of the later part of a run, by the change of entropy: differing ones
# Few problems and tasks a step, and the same command twice; everything else is what the bench does. Then the sections
# in which an arm's configuration is not that of `none`, whatever presets say.
SMALL = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from dataclasses import asdict, replace
import run, tasks
from ramet import ConfigError
from ramet_benchmarks.branching.runs import train_overrides
hops = tasks.KINDS["hops"]
tasks.KINDS["hops"] = replace(hops, setting=replace(hops.setting, tasks=2, tested=4, validated=4))
run.main()
run.main()
sys.argv += ["--sft", "64", "32"]
try:
    run.main()
except ConfigError as refused:
    print(str(refused).splitlines()[0])

from pathlib import Path
from ramet.config.compose import compose

def composed(arm):
    overrides = train_overrides(hops, Path("seed1"), arm, run.ARMS[arm], 1)
    return {**asdict(compose(overrides, job="train").config), "run": None}

none = composed("none")
for arm in ("none6", "random", "shuffled", "arpo", "aepo"):
    print(arm, "sets", *(key for key, value in composed(arm).items() if value != none[key]))
"""


def call(*arguments: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def stored(arm: str, seed: int, calls: float, accuracies: list[float]) -> dict[str, Any]:
    """A run of two steps of 10 rollouts each, validated before, between and after them."""
    per_step = {
        "rollout/rollouts": [10.0, 10.0],
        "rollout/executed_tool_calls": [calls, calls],
        "rollout/logical_tool_calls": [20.0, 20.0],
        "rollout/executed_sampled_tokens": [50.0, 50.0],
        "rollout/entropy_rose_share": [1.0, 0.5],
        "rollout/forks_per_group": [0.0, 4.0],
        "rollout/effective_roots": [8.0, 4.0],
        "group/no_signal_share": [0.5, 0.0],
    }
    valid = [[step, accuracy] for step, accuracy in enumerate(accuracies)]
    numbers = {"kind": "sums", "arm": arm, "seed": seed, "steps": 2, "wall_s": 9.0, "cpu_s": 3.0, "greedy": 0.5}
    return {
        **numbers,
        "sampled": accuracies[-1],
        "per_step": per_step,
        "valid": valid,
        "forks": {**dict.fromkeys(FORKS, 0.75), "by_change": [[[0, 0], [2, 1], [0, 0], [0, 0]], LATER]},
    }


def test_an_arm_trains_two_steps_differs_in_its_policy_alone_and_is_not_run_again(tmp_path: Path) -> None:
    command = [
        "-c",
        SMALL,
        str(BENCH),
        "--kinds",
        "hops",
        "--arms",
        "arpo",
        "--seeds",
        "1",
        "--first",
        "1",
        "--steps",
        "2",
    ]
    command += ["--sft", "64", "64", "--work", str(tmp_path)]
    text = call(*command)
    assert re.findall("^hops seed.*(?=, )", text, re.MULTILINE) == ["hops seed 1 arpo: greedy 0.000, sampled 0.000"]
    assert f"{tmp_path}/hops/seed1 is of another setting: remove it, or choose another --work" in text.splitlines()
    assert dict(re.findall("^(.+) sets (.+)$", text, re.MULTILINE)) == {
        "none6": "rollout",
        **{arm: "branch_policy" for arm in ("random", "shuffled", "arpo")},
        "aepo": "branch_policy advantage policy_loss",
    }
    numbers = json.loads((tmp_path / "hops/seed1/arpo.json").read_text())
    assert numbers["per_step"]["rollout/rollouts"] == [16.0, 16.0]
    assert [step for step, _ in numbers["valid"]] == [0, 2]
    assert not (tmp_path / "hops/seed1/arpo/checkpoints").exists()


def test_the_report_compares_within_seeds(tmp_path: Path) -> None:
    runs = [
        stored("none", 1, 20.0, [0.0, 0.4, 0.8]),
        stored("none", 2, 20.0, [0.2, 0.6, 1.0]),
        stored("arpo", 1, 10.0, [0.0, 0.5, 0.8]),
        stored("arpo", 2, 10.0, [0.2, 0.9, 1.0]),
    ]
    (tmp_path / "numbers.json").write_text(json.dumps({"settings": {"tasks_per_step": 12}, "runs": runs}))
    text = call(
        str(BENCH / "report.py"), "--results", str(tmp_path / "numbers.json"), "--page", str(tmp_path / "page.md")
    )
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in text.splitlines() if line.startswith("arpo - "))
    # Means of the curves: 0.40 and 0.60 against 0.45 and 0.75; t with one degree of freedom is 12.706 and 1.376.
    same = "0.000 ± 0.000 [0.000]"
    assert rows == {"arpo - none": f"0.100 ± 0.635 [0.704]  {same}  {same}"}
    cells = [re.split(r"\s{2,}", line) for line in text.splitlines()]
    assert ["arpo", "0.00: 0.00", "0.50: 0.25", "0.25: 1.00", "0.25: 0.50", "+0.750", "+1.000"] in cells
    for plot in ("curves", "forks"):
        assert (tmp_path / f"page_sums_{plot}.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_compares_with_fewer_rollouts_at_equal_calls(tmp_path: Path) -> None:
    runs = [
        stored("none6", 1, 15.0, [0.0, 0.4, 0.8]),
        stored("none6", 2, 15.0, [0.2, 0.6, 1.0]),
        stored("arpo", 1, 10.0, [0.0, 0.5, 0.8]),
        stored("arpo", 2, 10.0, [0.2, 0.9, 1.0]),
    ]
    (tmp_path / "numbers.json").write_text(json.dumps({"settings": {"tasks_per_step": 12}, "runs": runs}))
    text = call(
        str(BENCH / "report.py"), "--results", str(tmp_path / "numbers.json"), "--page", str(tmp_path / "page.md")
    )
    table = next(one for one in text.split("\n\n") if one.startswith("sums: quality at equal calls"))
    cells = {row[0]: row[1:] for row in (re.split(r"\s{2,}", line) for line in table.splitlines()[3:])}
    # After 20 calls, which both have executed: curves of mean 0.267 and 0.467 against 0.45 and 0.75.
    assert cells["none6"][:2] == ["2", "0.367 ± 1.271"]
    assert cells["arpo"][:5] == ["2", "0.600 ± 1.906", "0.233 ± 0.635 [0.704]", "0.134", "0.134"]


@pytest.mark.parametrize("name", ["branching", "branching_equal_calls"])
def test_a_page_has_the_tables_that_the_report_makes_of_its_stored_numbers(name: str, tmp_path: Path) -> None:
    page = (BENCH.parents[1] / f"docs/experiments/{name}.md").read_text()
    (tmp_path / "page.md").write_text(page)
    results = BENCH.parent / f"results/{name}.json"
    text = call(str(BENCH / "report.py"), "--results", str(results), "--page", str(tmp_path / "page.md"))
    assert (tmp_path / "page.md").read_text() == page
    assert text.count("\n\n") == len(re.findall(r"^```\n(sums|hops): ", page, re.MULTILINE)) >= 6


def test_the_leaderboard_has_the_tables_of_the_stored_numbers(tmp_path: Path) -> None:
    page = (BENCH.parents[1] / "docs/leaderboard.md").read_text()
    (tmp_path / "page.md").write_text(page)
    call(str(BENCH / "board.py"), "--page", str(tmp_path / "page.md"))
    assert (tmp_path / "page.md").read_text() == page
    assert re.findall(r"^\| (\S+).*0\.026 ± 0\.013", page, re.MULTILINE) == ["arpo"]  # as in the experiment's table


def test_holm_corrects_a_family_in_rising_order() -> None:
    names = (
        "from ramet_benchmarks.branching.compare import holm; print(holm({'a': 0.01, 'b': 0.04, 'c': 0.03, 'd': 0.5}))"
    )
    found = call("-c", f"import sys; sys.path.insert(0, {str(BENCH)!r}); {names}")
    assert eval(found) == {"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.5}


PEOPLE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from random import Random
import json, people, tasks

tasks.write(tasks.KINDS["people"], Path(sys.argv[2]), 1)
for one in people.questions():
    name = one.person
    for relation in (one.first, one.second):
        name = people.page(name).split(f"the {relation} is ")[1].split(",")[0].rstrip(".")
    for habit in (0.0, 1.0):
        trace = people.trace(one, habit, Random(1))
        assert name == one.answer and trace.endswith(f"<answer>{name}</answer>")
        assert trace.count("<search>") == 2 - habit
print(len(people.corpus()), people.page("Nobody"))
"""


def test_two_pages_answer_a_question_and_no_question_is_in_two_files(tmp_path: Path) -> None:
    assert call("-c", PEOPLE, str(BENCH), str(tmp_path)) == "528 There is no page of Nobody.\n"
    files = {name: (tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("train", "valid", "test", "sft")}
    assert {name: len(rows) for name, rows in files.items()} == {"train": 600, "valid": 64, "test": 60, "sft": 48}
    asked = [json.loads(row)["prompt"] for name in ("train", "valid", "test") for row in files[name]]
    shown = [json.loads(row)["conversations"][0]["value"] for row in files["sft"]]
    assert len(set(asked)) == len(asked) and not set(asked) & set(shown)
