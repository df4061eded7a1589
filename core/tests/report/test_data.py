from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ramet.errors import ConfigError
from ramet.evaluate.header import Header
from ramet.evaluate.partial import PartialResults
from ramet.evaluate.statistics import over_tasks
from ramet.evaluate.tasks import Judgement, task_result
from ramet.report.data import MAX_POINTS, overview, stored_config, tokenizer_folders
from ramet.report.evaluation import find_evaluation
from ramet.report.group_counts import GroupCounts
from ramet.rollout.record import GroupRecord
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.tracking.jsonl import JsonlTracker
from ramet.types import BenchmarkInfo, Group, Rollout, StopReason, Task, user_prompt


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere is not a folder"):
        overview(tmp_path / "nowhere")


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"no metrics in .*metrics\.jsonl"):
        overview(tmp_path)


def test_what_a_resume_restores_is_told_of_trainings_alone(tmp_path: Path) -> None:
    JsonlTracker(tmp_path / "metrics.jsonl").log(1, {"reward/mean": 0.5})
    for job, facts in (("eval", [["job", "eval"]]), ("train", [["job", "train"], ["resume_level", "A"]])):
        (tmp_path / "manifest.json").write_text(json.dumps({"job": job, "resume_level": "A", "format": 1, "data": []}))
        assert overview(tmp_path)["facts"] == facts


def test_curves_of_training_and_sft_have_axes_of_their_own(tmp_path: Path) -> None:
    JsonlTracker(tmp_path / "metrics.jsonl").log(1, {"reward/mean": 0.5, "sft/loss": 2.0})
    JsonlTracker(tmp_path / "sft" / "metrics.jsonl").log(100, {"sft/lr": 0.1})
    training, sft = overview(tmp_path)["sections"]
    assert (training["title"], [c["name"] for c in training["curves"]]) == ("Training", ["reward/mean"])
    assert (sft["title"], [(c["name"], c["x"]) for c in sft["curves"]]) == (
        "SFT",
        [("sft/loss", [1.0]), ("sft/lr", [100.0])],
    )


def test_forks_are_among_the_first_curves(tmp_path: Path) -> None:
    metrics = {"a": 1.0, "reward/mean": 0.5, "rollout/forks_per_group": 2.0, "rollout/tool_use": 1.0}
    JsonlTracker(tmp_path / "metrics.jsonl").log(1, metrics)
    (section,) = overview(tmp_path)["sections"]
    assert [(curve["name"], curve["main"]) for curve in section["curves"]] == [
        ("reward/mean", True), ("rollout/forks_per_group", True), ("rollout/tool_use", True), ("a", False),
    ]  # fmt: skip


def test_curves_say_what_carries_nothing_and_which_are_shares(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    for step in (1, 2):
        metrics = {"reward/mean": step / 4, "reward/math": step / 4, "train/lr": 0.1, "train/loss": -step, "a": step}
        tracker.log(step, {**metrics, "valid/reward": 0.5, "rollout/masked_share": 0.0})
    (section,) = overview(tmp_path)["sections"]
    curves = {curve["name"]: curve for curve in section["curves"]}
    assert next(iter(curves)) == "valid/reward"
    assert {name for name, curve in curves.items() if curve["flat"]} == {
        "valid/reward", "train/lr", "rollout/masked_share"
    }  # fmt: skip
    assert {name: curve["same"] for name, curve in curves.items() if curve["same"]} == {"reward/math": "reward/mean"}
    shares = {name for name, curve in curves.items() if curve["share"]}
    assert shares == {"valid/reward", "reward/mean", "reward/math", "rollout/masked_share"}


def counted(step: int, *groups: Sequence[float]) -> GroupCounts:
    """Counts of a step's groups of roots, each with these rewards."""
    counts, task = GroupCounts(), Task(id="t", prompt=user_prompt("q"))
    scored = [
        [
            ScoredRollout(rollout=Rollout(id=str(i), task=task, segments=(), stop=StopReason.ANSWER), reward=reward)
            for i, reward in enumerate(rewards)
        ]
        for rewards in groups
    ]
    records = [GroupRecord(step=step, group=ScoredGroup(task=task, rollouts=tuple(one))) for one in scored]
    assert list(counts.counted(records, "step")) == records
    return counts


def test_the_interval_of_a_step_is_that_of_its_groups(tmp_path: Path) -> None:
    JsonlTracker(tmp_path / "metrics.jsonl").log(3, {"reward/mean": 0.5})
    counts = counted(3, (0.0, 0.0), (1.0, 1.0), (0.0, 1.0))
    (section,) = overview(tmp_path, counts=counts)["sections"]
    assert section["curves"][0]["half"] == [pytest.approx(over_tasks([0.0, 1.0, 0.5]).half_width, abs=1e-5)]
    (equal,) = overview(tmp_path, counts=counted(3, (0.5,), (0.5,)))["sections"]
    assert equal["curves"][0]["half"] is None  # of equal groups it would be 0, which says nothing of others


def test_a_run_is_summed_up_in_sentences(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    for step in range(13):
        played = {"reward/mean": step / 10, "rollout/masked_share": 0.25, "rollout/rollouts": 8.0}
        called = {
            "rollout/tool_use": 0.5,
            "tool/python/calls": 6.0,
            "tool/python/errors": 1.0,
            "tool/search/calls": 0.0,
        }
        tracker.log(step, {**(played | called if step else {}), "valid/reward": [0.1, 0.4, 0.3][min(step, 2)]})
    lines = dict(overview(tmp_path, config=OmegaConf.create({"train": {"steps": 20}}))["in_short"])
    assert lines == {
        "steps": "12 of 20",
        "reward": "0.300 in steps 1 to 5, 1.000 in steps 8 to 12",
        "validation": "0.100 after step 0, 0.300 after step 12; highest 0.400 after step 1",
        "tools": "called by 50% of the rollouts in the first step, 50% in the last; python: 72 calls, 12 failed",
        "masked": "24 of 96 rollouts",
    }


def test_the_highest_validation_is_a_finite_one(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    for step, value in enumerate((math.nan, 0.1, 0.4, 0.3)):
        tracker.log(step, {"valid/reward": value})
    assert dict(overview(tmp_path)["in_short"])["validation"].endswith("; highest 0.400 after step 2")


def test_a_difference_within_the_noise_is_called_so(tmp_path: Path) -> None:
    tracker, counts = JsonlTracker(tmp_path / "metrics.jsonl"), GroupCounts()
    for step, groups in ((1, (0.0, 1.0, 0.0, 1.0)), (2, (1.0, 1.0, 0.0, 1.0))):
        tracker.log(step, {"reward/mean": sum(groups) / 4, "rollout/masked_share": math.nan})
        counts.update(counted(step, *((reward,) for reward in groups)))
    assert "the difference is within the noise" in dict(overview(tmp_path, counts=counts)["in_short"])["reward"]


def test_an_evaluation_alone_has_a_report_without_curves(tmp_path: Path) -> None:
    JsonlTracker(tmp_path / "metrics.jsonl").log(0, {"eval/sums/accuracy": 0.5})
    assert overview(tmp_path)["sections"] == []


def test_an_sft_run_alone_has_a_report(tmp_path: Path) -> None:
    JsonlTracker(tmp_path / "metrics.jsonl").log(1, {"sft/loss": 2.0})
    assert [section["title"] for section in overview(tmp_path)["sections"]] == ["SFT"]


def test_long_curves_are_thinned_to_means_of_neighbours(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    n = 2 * MAX_POINTS
    tracker.path.write_bytes(
        b"".join(json.dumps({"step": i, "time": 0, "a": float(i), "b": "nan"}).encode() + b"\n" for i in range(n))
    )
    (section,) = overview(tmp_path)["sections"]
    curve, empty = section["curves"]
    assert section["thinned"]
    assert (len(curve["x"]), curve["x"][:2], curve["y"][-1]) == (MAX_POINTS, [0.5, 2.5], n - 1.5)
    assert set(empty["y"]) == {None}


def test_the_summary_pairs_before_with_after(run: Path) -> None:
    summary = overview(run)["summary"]
    assert summary["pairs"] == [["greedy", 0.31, 0.94], ["tool_use", 0.2, 0.99]]
    assert summary["rest"] == [["rl_steps", "40"], ["seconds_by_phase.rl", "101.5"]]
    (run / "summary.json").write_text('{"greedy_before": NaN, "greedy_after": 0.5}')
    assert overview(run)["summary"]["pairs"] == [["greedy", "NaN", 0.5]]


def test_an_evaluation_is_shown_with_its_interval_and_how_many_were_judged(run: Path) -> None:
    info = BenchmarkInfo(description="", splits=("test",), metrics=("accuracy",), source="", licence="")
    header = Header(model="m", k=2, rules={}, settings={}, benchmarks={"sums": info}, versions={}, plugins=[])
    partial = PartialResults(run / "results.json", header)
    task = Task(id="a", prompt=user_prompt("q"))
    rollouts = tuple(Rollout(id=str(i), task=task, segments=(), stop=StopReason.ANSWER) for i in range(2))
    group = Group(task=task, rollouts=rollouts)
    partial.add(task_result("sums", group, [Judgement(scores={"accuracy": 1.0}), Judgement(scores={"accuracy": None})]))
    partial.finish()
    found = find_evaluation(run, stored_config(run))
    evaluation = overview(run, found)["evaluation"]
    assert (evaluation["model"], evaluation["k"], evaluation["finished"]) == ("m", 2, True)
    (sums,) = evaluation["benchmarks"]
    assert sums["metrics"] == [
        {
            "name": "accuracy",
            "avg": [1.0, None],
            "bounds": [0.5, 1.0],
            "passes": [[1, 1.0], [2, None]],
            "maj": 1.0,
            "judged": "1 of 2",
        }
    ]
    assert sums["missing"] == [["not judged", 1]] and sums["sources"] == []


def test_broken_side_files_are_reported_and_left_out(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "summary.json").write_text("{")
    (run / "config.yaml").write_text("model: [")
    (run / "results.json").write_text("[]")
    with caplog.at_level(logging.WARNING):
        config = stored_config(run)
        assert (overview(run)["summary"], find_evaluation(run, config)) == (None, None)
        assert tokenizer_folders(run, config) == [run / "tokenizer", run / "model"]
    assert "summary.json" in caplog.text and "config.yaml" in caplog.text


def test_the_tokenizer_is_looked_for_where_the_configuration_says(run: Path) -> None:
    (run / "config.yaml").write_text("model:\n  path: models/base\n  tokenizer: null\n")
    assert tokenizer_folders(run, stored_config(run))[2:] == [Path("models/base")]
