"""Trainings beside each other."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from core.tests.history.made_runs import write_training

from ramet.errors import ConfigError
from ramet.evaluate.statistics import over_tasks
from ramet.history.training import Training, difference_of_last, training_differences

RISING = [0.0, 0.1, 0.2, 0.3, 0.5, 0.4]


def test_the_result_is_the_mean_of_the_last_steps_at_most_half_of_all(tmp_path: Path) -> None:
    training = Training.read(write_training(tmp_path, "a", RISING))
    assert training.curves.last() == over_tasks([0.3, 0.5, 0.4])
    assert Training.read(write_training(tmp_path, "long", [0.0] * 90 + [1.0] * 10)).curves.last().mean == 1.0
    assert Training.read(write_training(tmp_path, "short", [0.5])).curves.last().half_width is None


def test_differences_are_paired_by_the_steps_that_both_have(tmp_path: Path) -> None:
    first = Training.read(write_training(tmp_path, "a", RISING))
    second = Training.read(write_training(tmp_path, "b", [reward + 0.2 for reward in RISING[:4]]))
    difference, steps = difference_of_last(first, second)
    assert (
        steps == [3, 4]
        and difference.mean == pytest.approx(0.2)
        and difference.half_width == pytest.approx(0, abs=1e-9)
    )


def test_the_best_validation_is_the_first_of_the_highest(tmp_path: Path) -> None:
    training = Training.read(write_training(tmp_path, "a", RISING, valid={2: 0.5, 4: 0.75, 6: 0.75}))
    assert training.best_valid == (4, 0.75) and training.summary.valid == 0.75
    assert training.seconds is not None and training.step_seconds == 2.0
    nan = Training.read(write_training(tmp_path, "nan", RISING, valid={2: math.nan, 4: 0.5}))
    assert nan.best_valid == (4, 0.5)
    assert Training.read(write_training(tmp_path, "all_nan", RISING, valid={2: math.nan})).best_valid is None


def test_keys_that_differ_are_listed_but_not_where_the_run_is_nor_options_of_other_components(tmp_path: Path) -> None:
    first = Training.read(write_training(tmp_path, "a", RISING, "branch_policy=none", "tools=[]"))
    second = Training.read(
        write_training(
            tmp_path, "b", RISING, "branch_policy=random", "tools=[mcp]", "tools.mcp.params.command=[a]", "policy.lr=1"
        )
    )
    found = {each.setting: (each.before, each.after) for each in training_differences(first, second)}
    assert found["policy.lr"][1] == "1.0"
    assert found["branch_policy.name"] == ("none", "random")
    assert found["tools.mcp"] == ("(absent)", "given")
    assert not [key for key in found if key.startswith(("run.", "branch_policy.params", "tools.mcp."))]
    assert training_differences(first, first) == []


def test_what_is_not_a_training_or_has_no_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no step yet"):
        Training.read(write_training(tmp_path, "empty", []))
