"""F33: fewer rollouts come back than were asked for. That is an error with both counts, never a smaller step."""

from __future__ import annotations

import dataclasses

import pytest

from ramet.cluster.local import LocalRollouts
from ramet.config.compose import compose
from ramet.errors import RametError
from ramet.evaluate.evaluation import run as evaluate
from ramet.types import Group


def without_last_rollout(groups: list[Group]) -> list[Group]:
    return [dataclasses.replace(groups[0], rollouts=groups[0].rollouts[:-1]), *groups[1:]]


def without_a_group(groups: list[Group]) -> list[Group]:
    return groups[1:]


def moved_from_one_group_to_another(groups: list[Group]) -> list[Group]:
    one, other, *rest = groups
    moved = dataclasses.replace(other, rollouts=(*other.rollouts, one.rollouts[-1]))
    return [dataclasses.replace(one, rollouts=one.rollouts[:-1]), moved, *rest]


def nothing_at_all(groups: list[Group]) -> list[Group]:
    return []


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (without_last_rollout, "12 rollouts of 3 tasks.* 11 of 3: tasks/"),
        (without_a_group, "12 rollouts of 3 tasks.* 8 of 2"),
        (moved_from_one_group_to_another, "12 rollouts of 3 tasks.* 12 of 3: tasks/"),
        (nothing_at_all, "12 rollouts of 3 tasks.* 0 of 0"),
    ],
)
def test_a_step_that_lost_rollouts_stops_the_run_and_names_both_counts(workspace, monkeypatch, lose, message):
    """F33."""
    played = LocalRollouts.run

    async def losing(self, tasks, **more):
        return lose(await played(self, tasks, **more))

    monkeypatch.setattr(LocalRollouts, "run", losing)
    name = lose.__name__
    with pytest.raises(RametError, match=message):
        workspace.train(name, steps=1)
    assert not list((workspace.runs / name).glob("rollouts/step_*")), "nothing was learned from what was left"
    assert not (workspace.runs / name / "metrics.jsonl").exists()


def test_masked_rollouts_are_not_lost_ones(workspace):
    """F33: masks explain what is missing from a group's statistics."""
    workspace.train("masked", "rollout.deadline_s=1e-6", "rollout.max_masked_share=1", steps=1)
    assert all(rollout["fault"] for group in workspace.records("masked", 1) for rollout in group["rollouts"])
    assert workspace.metrics("masked")[0]["rollout/masked_share"] == 1


def test_an_evaluation_that_lost_a_rollout_stops_before_the_task_counts_as_finished(workspace, monkeypatch):
    """F33, in `ramet eval`, where a resume would otherwise leave the task as it is."""
    played = LocalRollouts.run

    async def losing(self, tasks, *, on_group, **more):
        return await played(self, tasks, on_group=lambda group: on_group(without_last_rollout([group])[0]), **more)

    monkeypatch.setattr(LocalRollouts, "run", losing)
    resolved = compose(workspace.measure("lost"), job="eval")
    with pytest.raises(RametError, match=r"2 rollouts of 1 tasks.* 1 of 1"):
        evaluate(resolved)
    assert len((workspace.runs / "lost/results.json.partial.jsonl").read_text().splitlines()) == 1  # the header
