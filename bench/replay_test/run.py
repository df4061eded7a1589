"""`ramet test` on 200 recorded rollouts: unchanged code, then ten planted changes (`changes.py`).

    python bench/replay_test/run.py --inputs runs/quickstart_search-inputs

`--inputs`: what `make quickstart` left there, the model after SFT and the data. The rollouts are the first step of a
deterministic training of the quickstart's recipe with 25 tasks. All tests run in this process, so its imports, some
seven seconds of CPU time, are not in their times.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
os.environ["RAMET_PLUGINS"] = "changed_agent"

from changes import STEP, Change, Found, changes, write_noisy  # noqa: E402
from harness import measured, print_table, write_results  # noqa: E402

from ramet import Rollout, api, cli  # noqa: E402

TASKS, GROUP = 25, 8
MODEL, DATA = "sft/model", "data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=Path, default=Path("runs/quickstart_search-inputs"))
    inputs = parser.parse_args().inputs.resolve()
    with tempfile.TemporaryDirectory(prefix="replay-test-") as folder:
        work = Path(folder)
        run = record(inputs, work)
        groups = recorded(run)
        write_noisy(inputs / MODEL, work / "noisy")
        planted = changes(work, run / "model", work / "noisy")
        runs = [unchanged(run, work, "sample"), unchanged(run, work, "logprobs")]
        runs += [test(run, work, change, groups) for change in planted]
    summary = summarise(runs)
    print(write_results("replay_test", {"tasks": TASKS, "rollouts": TASKS * GROUP}, runs, summary))


def record(inputs: Path, work: Path) -> Path:
    """Run the step that is recorded."""
    keys = [
        "experiment=quickstart_search", "run.seed=1", f"run.root={work}", "run.name=recorded",
        f"model.path={inputs / MODEL}", f"data.train=[{inputs / DATA / 'rl.jsonl'}]",
        f"tools.search.params.corpus={inputs / DATA / 'corpus.sqlite'}", "run.deterministic=true", "train.steps=1",
        f"train.tasks_per_step={TASKS}", f"rollout.max_concurrent={TASKS * GROUP}",
        f"engine.params.slots={TASKS * GROUP}",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "ramet", "train", *keys], check=True, cwd=work)
    return work / "recorded"


def recorded(run: Path) -> list[dict[str, Rollout]]:
    """Return the rollouts of each group by id."""
    groups: dict[str, dict[str, Rollout]] = {}
    for one in api.rollouts(run):
        groups.setdefault(one.rollout.task.id, {})[one.rollout.id] = one.rollout
    return list(groups.values())


def ramet_test(run: Path, work: Path, arguments: Sequence[str]) -> tuple[dict[tuple[str, str], Found], dict[str, Any]]:
    """Run the command; returns the first difference by task and rollout, and times."""
    junit = work / "junit.xml"
    with contextlib.chdir(work), measured() as one:
        code = cli.main(["test", str(run), "--junit", str(junit), *arguments])
    if code not in (0, 1):
        raise SystemExit(f"ramet test ended with exit code {code}")
    found: dict[tuple[str, str], Found] = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        assert case.find("error") is None and case.find("skipped") is None
        failure = case.find("failure")
        task = case.attrib["classname"].removeprefix(f"step_{STEP:06d}.")
        found[task, case.attrib["name"].removeprefix("rollout ")] = None if failure is None else _read(failure.attrib)
    times = {"wall_s": round(one.wall_s, 1), "cpu_s": round(one.cpu_s, 1), "load": round(one.load, 1)}
    return found, {**times, "code": code}


def _read(failure: dict[str, str]) -> Found:
    match = re.match(r"turn (\d+),", failure["message"])
    assert match is not None
    return failure["type"], int(match[1])


def unchanged(run: Path, work: Path, compare: str) -> dict[str, Any]:
    found, times = ramet_test(run, work, ["--compare", compare])
    return {"change": "none", "name": f"unchanged, {compare}", "rollouts": len(found), **times,
            "differ": sum(one is not None for one in found.values())}  # fmt: skip


def test(run: Path, work: Path, change: Change, groups: Sequence[dict[str, Rollout]]) -> dict[str, Any]:
    found, times = ramet_test(run, work, change.arguments)
    expected = {(r.task.id, r.id): change.expected(r, group) for group in groups for r in group.values()}
    right = sum(found[key] == one for key, one in expected.items())
    turns = Counter(one[1] for one in found.values() if one is not None)
    return {
        "change": change.kind, "name": change.name, "rollouts": len(found), **times,
        "differ": sum(one is not None for one in found.values()),
        "expected": sum(one is not None for one in expected.values()),
        "right": right, "turns": {str(turn): n for turn, n in sorted(turns.items())},
        "wrong": [[*key, found[key], one] for key, one in expected.items() if found[key] != one][:5],
    }  # fmt: skip


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    head = ("change", "rollouts that differ", "expected", "right turn and kind", "wall s", "CPU s")
    rows = [
        (f"{run['change']}: {run['name']}", str(run["differ"]), str(run.get("expected", 0)),
         f"{run.get('right', run['rollouts'] - run['differ'])} of {run['rollouts']}", f"{run['wall_s']:.1f}",
         f"{run['cpu_s']:.1f}")
        for run in runs
    ]  # fmt: skip
    print_table(head, rows)
    planted = [run for run in runs if run["change"] != "none"]
    return {
        "unchanged_differences": sum(run["differ"] for run in runs if run["change"] == "none"),
        "planted": len(planted),
        "found": sum(run["differ"] > 0 for run in planted),
        "found_all_right": sum(run["right"] == run["rollouts"] for run in planted),
        "slowest_cpu_s": max(run["cpu_s"] for run in planted),
        "slowest_wall_s": max(run["wall_s"] for run in planted),
    }


if __name__ == "__main__":
    main()
