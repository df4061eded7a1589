"""`ramet bench branching`: any installed policy with its controls, a leaderboard, and the same command again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ramet import ConfigError
from ramet.runs import stopped
from ramet.testing import registered
from ramet_benchmarks.branching.arms import arms_of
from ramet_benchmarks.branching.command import bench
from ramet_benchmarks.branching.compare import on_grid
from ramet_benchmarks.branching.leaderboard import against_chance, board


def stored(arm: str, seed: int, calls: float, accuracies: list[float]) -> dict[str, Any]:
    """A run of two steps of 10 rollouts each, validated before, between and after them."""
    per_step = {
        "rollout/rollouts": [10.0, 10.0],
        "rollout/executed_tool_calls": [calls, calls],
        "rollout/executed_sampled_tokens": [50.0, 50.0],
    }
    valid = [[step, accuracy] for step, accuracy in enumerate(accuracies)]
    return {"arm": arm, "seed": seed, "sampled": accuracies[-1], "per_step": per_step, "valid": valid}


def test_a_policy_with_options_is_run_with_controls_that_have_its_options() -> None:
    arms = {arm.name: arm.keys[1:] for arm in arms_of(["token_entropy:max_forks=2;min_entropy=0.1", "tree_grpo"])}
    assert arms == {
        "none": (),
        "none6": ("rollout.group_size=6",),
        "random": ("branch_policy=random",),
        "token_entropy_max_forks=2_min_entropy=0.1": (
            "branch_policy=token_entropy",
            "branch_policy.params.max_forks=2",
            "branch_policy.params.min_entropy=0.1",
        ),
        "token_entropy_max_forks=2_min_entropy=0.1_shuffled": (
            "branch_policy=shuffled",
            "branch_policy.params.policy=token_entropy",
            "branch_policy.params.params.max_forks=2",
            "branch_policy.params.params.min_entropy=0.1",
        ),
        "tree_grpo": ("branch_policy=tree_grpo",),  # reads no entropies: nothing to shuffle
    }


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("none6", "none6: is a control"),
        ("token_entropi", "token_entropi"),
        ("token_entropy:max_forks", "'max_forks' is not KEY=VALUE"),
        ("token_entropy:max_fork=2", "max_fork"),
    ],
)
def test_what_is_not_a_policy_with_options_is_refused_before_anything_runs(policy: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arms_of([policy])


def test_the_board_ranks_at_equal_calls() -> None:
    """After the 20 calls that both executed, the curves have the means 0.267 and 0.467 against 0.45 and 0.75."""
    arms = {
        "none6": {1: stored("none6", 1, 15.0, [0.0, 0.4, 0.8]), 2: stored("none6", 2, 15.0, [0.2, 0.6, 1.0])},
        "mine": {1: stored("mine", 1, 10.0, [0.0, 0.5, 0.8]), 2: stored("mine", 2, 10.0, [0.2, 0.9, 1.0])},
        "mine_shuffled": {s: stored("mine_shuffled", s, 10.0, [0.0, 0.5, 0.8]) for s in (1, 2)},
    }
    _, (first, second, third) = board(arms)
    assert [row[0] for row in (first, second, third)] == ["mine", "mine_shuffled (control)", "none6 (control)"]
    assert first[2:5] == ["0.600 ± 1.906", "0.233 ± 0.635 [0.704]", "0.134"]
    assert third[2:4] == ["0.367 ± 1.271", ""] and first[8:] == ["1.00", "5.0"]
    _, [pair] = against_chance(arms)
    assert pair[:2] == ["mine - mine_shuffled", "0.150 ± 1.906 [2.112]"]


def test_an_arm_that_called_nothing_has_no_quality_and_a_curve() -> None:
    arms = {arm: {1: stored(arm, 1, 0.0, [0.0, 0.0, 0.0])} for arm in ("none6", "mine")}
    _, rows = board(arms)
    assert [row[2] for row in rows] == ["-", "-"] and [row[5] for row in rows] == ["0.000", "0.000"]
    late = stored("late", 1, 4.0, [0.2, 0.4, 0.8])
    late["per_step"]["rollout/executed_tool_calls"] = [0.0, 4.0]
    for run, ends in ((arms["mine"][1], (0.0, 0.0)), (late, (0.2, 0.8))):
        xs, band = on_grid([run], "executed tool calls")
        assert len(xs) == len(band) and (band[0].mean, band[-1].mean) == ends


def test_a_stop_names_the_command_of_the_bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("torch", "ramet_rewards"):
        pytest.importorskip(module, reason="ramet-benchmarks[branching] is not installed")

    def stops() -> Any:
        stopped.logger.warning("resume with: ramet train")
        raise KeyboardInterrupt

    with registered("branch_policy", "stops", stops), pytest.raises(KeyboardInterrupt):
        bench(["branching", "stops", "--smoke", "--work", str(tmp_path)])
    assert "the same command again continues" in capsys.readouterr().err and "resume with" not in caplog.text


@pytest.mark.parametrize(
    ("file", "problem"), [("none.json", "is of a model that is gone"), ("notes.txt", "not made by this command")]
)
def test_finished_arms_and_files_of_others_stay(tmp_path: Path, file: str, problem: str) -> None:
    runs = pytest.importorskip("ramet_benchmarks.branching.runs", reason="ramet-benchmarks[branching] is not installed")
    kinds = pytest.importorskip(
        "ramet_benchmarks.branching.kinds", reason="ramet-benchmarks[branching] is not installed"
    )
    kept = tmp_path / "hops/seed1" / file
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    with pytest.raises(ConfigError, match=problem):
        runs.prepare(tmp_path, kinds.KINDS["hops"], 1)
    assert kept.is_file()


@pytest.mark.slow
def test_a_smoke_run_writes_the_leaderboard_and_runs_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch", "ramet_rewards"):
        pytest.importorskip(module, reason="ramet-benchmarks[branching] is not installed")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs/bench_branching_smoke"  # apart from what measures
    command = ["branching", "tree_grpo", "--smoke", "--seeds", "1"]
    assert bench(command) == 0
    assert len(re.findall("^hops seed 1 ", capsys.readouterr().out, re.MULTILINE)) == 4
    assert bench(command) == 0
    assert "hops seed 1 " not in capsys.readouterr().out
    runs = json.loads((folder / "leaderboard.json").read_text())["runs"]
    assert [run["arm"] for run in runs] == ["none", "none6", "random", "tree_grpo"]
    assert [run["per_step"]["rollout/rollouts"] for run in runs] == [[16, 16], [12, 12], [16, 16], [16, 16]]
    assert (folder / "leaderboard.md").read_text().count("(control)") == 3
    assert (folder / "hops.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="is of another setting"):
        bench([*command, "--steps", "3"])
