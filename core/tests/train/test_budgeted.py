"""Runs under a step budget: the same bits where it grants what a step has anyway, exact resumes, keys, metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from ramet import BranchAction, BranchEvent, Grant, GroupView, Rollout, Score, Start, StepView, per_rollout
from ramet.config.compose import compose
from ramet.errors import ConfigError
from ramet.models.tiny import make_tiny_model
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.record import read_records, record_line
from ramet.train import replay
from ramet.train.loop import Loop
from ramet.train.run import TrainState
from ramet.train.training import run

TASKS, GROUP = 2, 4


class Evenly(NoBranching):
    """Grants every task its group, as a step without a budget does."""

    def allocate(self, step: StepView, rng: Random) -> Sequence[Grant]:
        if step.budget_left < step.budget:
            return []
        return [Grant(task=i, n=step.group_size) for i in range(len(step.tasks))]


class Halves(NoBranching):
    """Grants the first task half of its group twice, and notes what it saw."""

    seen: ClassVar[list[StepView]] = []

    def allocate(self, step: StepView, rng: Random) -> Sequence[Grant]:
        self.seen.append(step)
        return [Grant(task=0, n=step.group_size // 2)] if step.budget_left > step.budget - step.group_size else []


class Draws(Halves):
    """Notes its first draw for each group."""

    drawn: ClassVar[list[float]] = []

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if isinstance(event, Start):
            self.drawn.append(rng.random())
        return super().decide(event, group, rng)


def parity(rollout: Rollout) -> float:
    """A reward that differs within groups, from what was sampled."""
    return float(sum(token for s in rollout.segments if s.is_sampled for token in s.token_ids) % 2)


@pytest.fixture(autouse=True)
def components(register: Callable[..., None]) -> None:
    register("branch_policy", "evenly", Evenly)
    register("branch_policy", "halves", Halves)
    register("branch_policy", "draws", Draws)
    register("rewards", "parity", lambda: per_rollout(parity))
    Halves.seen.clear()
    Draws.drawn.clear()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=2, heads=2, intermediate=64, initializer_range=0.2
    )


@pytest.fixture
def train(model: Path, tmp_path: Path) -> Callable[..., Path]:
    """Trains with these overrides; the run's directory."""

    def start(name: str, *more: str) -> Path:
        data = tmp_path / "train.jsonl"
        data.write_text("".join(json.dumps({"prompt": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(6)))
        overrides = [
            f"model.path={model}", "model.device=cpu", f"data.train=[{data}]", f"run.root={tmp_path}",
            f"run.name={name}", "run.deterministic=true", "data.max_prompt_tokens=32",
            "rollout_step.system_prompt=never", "rollout.max_response_tokens=8", f"rollout.group_size={GROUP}",
            "rollout.max_concurrent=8", "engine.params.slots=8", "tools=[]", "rewards=[parity]", "advantage=grpo",
            "train.steps=3", f"train.tasks_per_step={TASKS}", "train.save_every=1", "policy.lr=1e-2",
            "trackers=[jsonl]", *more,
        ]  # fmt: skip
        run(compose(overrides, job="train"))
        return tmp_path / name

    return start


def bits(run: Path) -> dict[str, Any]:
    """The weights of a run, and its records without what depends on the time."""
    weights = (run / "model/model.safetensors").read_bytes()
    found: dict[str, Any] = {"weights": weights}
    for path in sorted((run / "rollouts").iterdir()):
        groups = [json.loads(record_line(record)) for record in read_records(path)]
        for group in groups:
            for rollout in group["rollouts"]:
                rollout["stats"] = {
                    key: n
                    for key, n in rollout["stats"].items()
                    if key not in ("seconds", "generate_s", "cached_tokens")
                }
        found[path.name] = groups
    return found


def sampled(group: dict[str, Any]) -> list[list[str]]:
    """The token ids of each rollout of a record's group."""
    return [[group["segments"][i]["ids"] for i in rollout["segments"]] for rollout in group["rollouts"]]


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def cut_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends without a save when this step has learned, as after `kill -9`."""
    finish = Loop._finish

    async def cut(self: Loop, at: int, *rest: Any) -> None:
        if at == step:
            raise RuntimeError("the power went out")
        await finish(self, at, *rest)

    monkeypatch.setattr(Loop, "_finish", cut)


def test_a_budget_that_grants_every_task_its_group_gives_the_same_bits_as_none_also_after_a_kill(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    without = bits(train("without"))
    assert len({scored["reward"] for group in without["step_000001.jsonl.gz"] for scored in group["rollouts"]}) > 1
    assert bits(train("uniform", "train.budget=uniform", "branch_policy=evenly")) == without
    assert bits(train("evenly", "branch_policy=evenly")) == without
    with monkeypatch.context() as patch:
        cut_at(2, patch)
        with pytest.raises(RuntimeError, match="power"):
            train("killed", "branch_policy=evenly")
    assert bits(train("killed", "branch_policy=evenly")) == without


@pytest.mark.parametrize("budget", ["contrast", "random"])
def test_a_killed_run_continues_with_the_outcomes_that_it_would_have_had(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    options = [f"train.budget={budget}", "train.budget_tasks=5"]
    whole = train("whole", *options)
    with monkeypatch.context() as patch:
        cut_at(3, patch)
        with pytest.raises(RuntimeError, match="power"):
            train("killed", *options)
    killed = train("killed", *options)
    assert bits(killed) == bits(whole)
    states = [sorted((one / "checkpoints").glob("step_*/trainer.json"))[-1].parent for one in (whole, killed)]
    fingerprint = json.loads((states[0] / "trainer.json").read_text())["data_fingerprint"]
    first, second = (TrainState.load(state, fingerprint) for state in states)
    assert first.outcomes == second.outcomes
    assert {outcome.step for kept in first.outcomes.values() for outcome in kept} == {1, 2, 3}
    for step in metrics(whole):
        assert (step["budget/waves"], step["budget/tasks_drawn"], step["budget/unused"]) == (2, 5, 0)
        assert step["rollout/rollouts"] == TASKS * GROUP
    assert replay.run(whole, ["run.name=again"]).difference == 0


def test_a_pass_over_the_data_counts_the_tasks_that_steps_draw(train: Callable[..., Path]) -> None:
    passed = train("pass", "train.steps=null", "train.budget=random", "train.budget_tasks=3")
    assert [step["step"] for step in metrics(passed)][-1] == 2  # of 6 tasks


def test_the_groups_of_a_task_in_a_step_are_numbered_on_and_seen_by_the_next_answer(train: Callable[..., Path]) -> None:
    found = bits(train("halves", "branch_policy=halves", "train.steps=1"))
    first, second = found["step_000001.jsonl.gz"]
    assert first["task"] == second["task"]
    assert [[rollout["id"] for rollout in group["rollouts"]] for group in (first, second)] == [["0", "1"], ["2", "3"]]
    sampled = bits(train("whole", "train.steps=1"))["step_000001.jsonl.gz"][0]
    segments = [
        [group["segments"][i]["ids"] for i in r["segments"]] for group in (first, second) for r in group["rollouts"]
    ]
    assert segments == [[sampled["segments"][i]["ids"] for i in r["segments"]] for r in sampled["rollouts"]]
    views = Halves.seen
    assert [view.budget_left for view in views] == [8, 6, 4]
    assert [len(view.tasks[0].groups) for view in views] == [0, 1, 2]
    assert views[1].tasks[0].groups[0].rewards == tuple(rollout["reward"] for rollout in first["rollouts"])
    assert views[1].tasks[0].groups[0].n_tokens > 0
    assert views[1].tasks[0].groups[0].seconds is None  # the run is deterministic


def test_a_policy_draws_otherwise_for_each_group_of_a_task(train: Callable[..., Path]) -> None:
    train("draws", "branch_policy=draws", "train.steps=1")
    assert len(Draws.drawn) == len(set(Draws.drawn)) == 3  # once before the start, and for two groups of one task


def test_rewards_of_tokens_count_in_outcomes(train: Callable[..., Path], register: Callable[..., None]) -> None:
    register(
        "rewards", "tokens", lambda: per_rollout(lambda rollout: Score(value=0.0, token_rewards={0: parity(rollout)}))
    )
    found = bits(train("halves", "branch_policy=halves", "train.steps=1", "rewards=[parity,tokens]"))
    rewards = tuple(2 * rollout["reward"] for rollout in found["step_000001.jsonl.gz"][0]["rollouts"])
    assert Halves.seen[1].tasks[0].groups[0].rewards == rewards and 2.0 in rewards


def test_seconds_are_seen_where_a_run_may_differ(train: Callable[..., Path]) -> None:
    train("halves", "branch_policy=halves", "train.steps=1", "run.deterministic=false")
    (outcome,) = Halves.seen[1].tasks[0].groups
    assert outcome.seconds is not None and outcome.seconds > 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["train.budget=contrast", "train.resample_rounds=1"], "needs train.resample_rounds=0, got 1"),
        (["branch_policy=evenly", "train.staleness=1", "run.deterministic=false"], "needs train.staleness=0, got 1"),
        (["train.budget=contrast-per-second"], "reads clocks, so run.deterministic=true excludes it"),
        (["train.budget_tasks=4"], "read only with a step budget"),
        (["train.budget=random", "train.budget_tasks=1"], "at least train.tasks_per_step=2"),
        (["train.budget=random", "train.budget_tasks=99"], r"train\.budget_tasks=99: the data set has \d+ tasks"),
        (["train.budget=contrast", "rollout.group_size=2"], "raise it to 3 or more"),
        (
            ["train.budget=contrast", "branch_policy=random", "branch_policy.params.initial_rollouts=3"],
            "whose groups have half of rollout.group_size: .*initial_rollouts: 3 is more than rollout.group_size, 2",
        ),
    ],
)
def test_what_a_budget_cannot_be_combined_with_is_refused_before_the_start(
    train: Callable[..., Path], options: list[str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        train("refused", *options)
