"""Which rollouts are measured, and where they are continued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.errors import ConfigError
from ramet.testing.doubles import ScriptedPolicy
from ramet.types import AfterTool, Fork
from ramet_replay.credit.points import choose, points_of


def test_of_each_group_the_best_and_the_worst_take_turns(recorded: Callable[..., Path]) -> None:
    run = recorded()
    chosen = choose(run, names=[], step=None, n=3)
    assert [(rollout.name, rollout.end) for rollout in chosen] == [("3/0/0", 1.0), ("3/1/0", 1.0), ("3/0/1", 0.0)]
    assert [rollout.name for rollout in choose(run, names=[], step=3, n=9)] == [*(r.name for r in chosen), "3/1/1"]


def test_points_are_the_beginnings_of_turns_and_the_prompt_is_one_for_all(recorded: Callable[..., Path]) -> None:
    chosen = choose(recorded(), names=["3/1/0", "3/1/1"], step=None, n=1)
    assert [point.name for point in points_of(chosen)] == ["3/1/0:0", "3/1/0:1", "3/1/0:2", "3/1/1:1", "3/1/1:2"]
    before, after, _ = chosen[0].points
    assert (before.prefix.n_tokens, before.prefix.source.turns) == (0, 0)
    texts = ["".join(segment.text for segment in point.prefix.segments[1:]) for point in (before, after)]
    assert texts[0] == "" and "good" in texts[1] and "again" not in texts[1]


def test_what_a_fork_shares_with_its_parent_is_measured_once(recorded: Callable[..., Path]) -> None:
    policy = ScriptedPolicy(1, {(AfterTool, "0", 1): [Fork(rollout="0", turn=1)]})
    forked = choose(recorded(policy), names=["3/0/0.0"], step=None, n=1)
    assert [point.name for point in points_of(forked)] == ["3/0/0:0", "3/0/0:1", "3/0/0.0:2"]


@pytest.mark.parametrize("name", ["0", "3/7/0", "3/0/5", "4/0/0"])
def test_a_rollout_that_was_not_recorded_is_refused(name: str, recorded: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=name if name != "4/0/0" else "step 4"):
        choose(recorded(), names=[name], step=None, n=1)
