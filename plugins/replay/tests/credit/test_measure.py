"""Measuring: the planted truth is found, points are kept, budgets end it, and infrastructure is never reward 0."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import ConfigError, InfraError
from ramet.rollout.scoring import Scorer
from ramet_replay.credit.files import POINTS, PointFile
from ramet_replay.credit.measure import credit_rows, measure
from ramet_replay.credit.points import ChosenRollout, choose

HEADER = {"run": "r", "model_sha256": "m", "samples": 4, "config": "run:\n  seed: 1\n"}


@pytest.fixture
def measured(scripted: Callable[..., Any], scorer: Scorer, tmp_path: Path) -> Callable[..., tuple[PointFile, Any, int]]:
    """Measure with four continuations into `out`; the file, the engine, and how many rollouts were reached."""

    def run(chosen: Sequence[ChosenRollout], *fails: str, **options: Any) -> tuple[PointFile, Any, int]:
        file = PointFile(tmp_path / "out", HEADER)
        file.open()
        rollouts = scripted(*fails)

        async def main() -> int:
            settings = {"samples": 4, "at_once": 8, "budget": None, "masked_limit": 0.5, **options}
            try:
                return await measure(rollouts, scorer, chosen, file, **settings)
            finally:
                await rollouts.worker.close()

        return file, rollouts.engine, asyncio.run(main())

    return run


def test_the_call_that_decides_is_found(recorded: Callable[..., Path], measured: Callable[..., Any]) -> None:
    chosen = choose(recorded(), names=[], step=None, n=4)
    file, engine, reached = measured(chosen)
    rows = credit_rows(chosen, file)
    worth = {(row["rollout"], row["turn"]): row["worth"]["mean"] for row in rows}
    assert reached == 4 and len(file.points) == 2 * 5
    for name, sign in (("3/0/0", 0.5), ("3/0/1", -0.5), ("3/1/0", 0.5), ("3/1/1", -0.5)):
        assert [worth[name, turn] for turn in range(3)] == [sign, 0.0, 0.0]
    assert [call["arguments"] for call in rows[0]["calls"]] == [{"text": "good"}]
    assert rows[0]["before"]["mean"] == 0.5 and rows[2]["is_last"] and rows[2]["continuations"] == [4]
    assert file.tokens == engine.metrics()["engine/sampled_tokens"]  # nothing of a prefix is sampled


def test_finished_points_are_not_repeated(
    recorded: Callable[..., Path], measured: Callable[..., Any], tmp_path: Path
) -> None:
    """A kill leaves the last line torn."""
    chosen = choose(recorded(), names=[], step=None, n=4)
    file, *_ = measured(chosen)
    rows, path = credit_rows(chosen, file), tmp_path / "out" / POINTS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:20])
    again, engine, _ = measured(chosen)
    assert {request.id.rpartition("/")[0].split("/")[1] for request in engine.requests} == {
        str(point.step) for rollout in chosen for point in rollout.points if point.name in _points(lines[-2:])
    }
    assert credit_rows(chosen, again) == rows


def _points(lines: Sequence[bytes]) -> set[str]:
    return {line.decode().split('"point":"')[1].partition('"')[0] for line in lines}


def test_a_budget_ends_it_between_rollouts_and_a_larger_one_continues(
    recorded: Callable[..., Path], measured: Callable[..., Any]
) -> None:
    chosen = choose(recorded(), names=[], step=None, n=4)
    file, _, reached = measured(chosen, budget=1, at_once=4)
    assert reached == 1 and set(file.points) == {point.name for point in chosen[0].points}
    _, engine, reached = measured(chosen, budget=1, at_once=4)
    assert reached == 1 and not engine.requests
    file, _, reached = measured(chosen, budget=10**6, at_once=4)
    assert reached == 4 and len(file.points) == 10


def test_masked_continuations_are_left_out_and_counted(
    recorded: Callable[..., Path], measured: Callable[..., Any]
) -> None:
    chosen = choose(recorded(), names=["3/0/0"], step=None, n=1)
    file, *_ = measured(chosen, "0")
    rows = credit_rows(chosen, file)
    assert [row["masked"] for row in rows] == [[1, 1], [1, 1], [1]]
    assert rows[0]["before"]["mean"] == pytest.approx(1 / 3)  # one of the two good ones is masked, and is no 0
    assert file.points["3/0/0:0"].masked == {"engine": 1}


def test_too_many_masked_continuations_stop_it_and_are_not_kept(
    recorded: Callable[..., Path], measured: Callable[..., Any], tmp_path: Path
) -> None:
    chosen = choose(recorded(), names=["3/0/0"], step=None, n=1)
    with pytest.raises(InfraError, match="lost"):
        measured(chosen, "0", "1", "2")
    assert not PointFile(tmp_path / "out", HEADER).points


def test_points_that_a_reward_could_not_judge_are_not_kept(
    recorded: Callable[..., Path], measured: Callable[..., Any], scorer: Scorer, tmp_path: Path
) -> None:
    class Down:
        async def __call__(self, group: Sequence[Any]) -> Sequence[float | None]:
            return [None for _ in group]

    chosen = choose(recorded(), names=[], step=None, n=1)
    scorer.rewards[0] = replace(scorer.rewards[0], reward=Down())
    with pytest.raises(InfraError, match="could not judge 12 of 12"):
        measured(chosen)
    assert not PointFile(tmp_path / "out", HEADER).points


@pytest.mark.parametrize(("key", "value"), [("model_sha256", "other"), ("samples", 8), ("config", "run:\n  seed: 2\n")])
def test_other_settings_may_not_continue_a_file(key: str, value: Any, tmp_path: Path) -> None:
    PointFile(tmp_path / "out", HEADER).open()
    with pytest.raises(ConfigError, match="run.seed" if key == "config" else key):
        PointFile(tmp_path / "out", {**HEADER, key: value})


@pytest.mark.parametrize("name", ["notes.txt", "credit.jsonl"])
def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=name):
        PointFile(tmp_path, HEADER)
    with pytest.raises(ConfigError, match="not a folder"):
        PointFile(tmp_path / name, HEADER)
