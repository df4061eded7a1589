"""Every preset of the core trains two steps through `ramet train`: a tiny model, rollouts of several turns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file

from ramet.config.compose import compose
from ramet.models.tiny import make_tiny_model
from ramet.rollout.record import GroupRecord, read_records
from ramet.rollout.scoring import ScoredRollout
from ramet.train.training import run
from ramet.types import (
    BranchAction,
    BranchEvent,
    Done,
    GroupView,
    Idle,
    Markup,
    Rollout,
    RolloutState,
    SegmentKind,
    Start,
    StartRoots,
    StepContext,
    StepResult,
    StopReason,
    Task,
    ToolSchema,
)

PRESETS = sorted(path.name[:-5] for path in files("ramet.conf.algorithm").iterdir() if path.name.endswith(".yaml"))
TASKS, GROUP, TURNS = 2, 6, 3
Train = Callable[..., dict[int, Mapping[str, float]]]


class ShortTurns:
    """Three turns, each to the first capital letter or digit; whatever they say, `#` is inserted after them."""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        generation = await ctx.generate(stop=[chr(code) for code in range(32, 91)])
        if generation.truncated or generation.finished or state.turn == TURNS - 1:
            return StepResult(stop=StopReason.END)
        return StepResult(insert=(Markup(text="#"),))


class NamedTurns(ShortTurns):
    """As an environment whose state is the number of its turns."""

    forks = "copy"

    async def open(self, task: Task, seed: int) -> list[None]:
        return []

    async def fork(self, state: list[None]) -> list[None]:
        return list(state)

    async def close(self, state: list[None]) -> None:
        pass

    def state_key(self, state: list[None]) -> str:
        return str(len(state))

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        state.environment.append(None)
        return await super().__call__(state, ctx)


class Leaves:
    """Plays four rollouts of every second task, and six of the others."""

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if isinstance(event, Start):
            return [StartRoots(n=4 + 2 * (ord(group.task.question[0]) % 2))]
        return [Done()] if isinstance(event, Idle) else []


class ByLength:
    """Rewards that differ within the groups of an untrained model."""

    per_rollout = True

    async def __call__(self, group: Sequence[Rollout]) -> list[float]:
        return [rollout.n_sampled_tokens % 7 / 6 for rollout in group]


@pytest.fixture(autouse=True)
def components(register: Callable[..., None]) -> None:
    register("rollout_step", "short_turns", ShortTurns)
    register("rollout_step", "named_turns", NamedTurns)
    register("rewards", "by_length", ByLength)
    register("branch_policy", "leaves", Leaves)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("model") / "tiny", hidden=16, layers=1, heads=2, intermediate=32, initializer_range=0.2
    )


@pytest.fixture
def train(model: Path, tmp_path: Path) -> Train:
    """Trains with these overrides; the metrics of each step."""
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(6)))

    def start(*more: str) -> dict[int, Mapping[str, float]]:
        overrides = [
            f"model.path={model}", "model.device=cpu", f"data.train=[{data}]", f"run.root={tmp_path}", "run.name=run",
            "run.deterministic=true", "data.max_prompt_tokens=32", "rollout_step=short_turns",
            "rollout_step.system_prompt=never", "rollout.max_response_tokens=24", f"rollout.group_size={GROUP}",
            "rollout.max_concurrent=12", "engine.params.slots=12", "tools=[]", "rewards=[by_length]", "train.steps=2",
            f"train.tasks_per_step={TASKS}", "train.minibatches=2", "policy.lr=1e-2", "trackers=[jsonl]", *more,
        ]  # fmt: skip
        run(compose(overrides, job="train"))
        lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
        return {line["step"]: line for line in lines}

    return start


def records(folder: Path, step: int) -> list[GroupRecord]:
    return list(read_records(folder / f"run/rollouts/step_{step:06d}.jsonl.gz"))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains(train: Train, model: Path, tmp_path: Path, preset: str) -> None:
    dynamic = "0" if preset == "ppo" else "1"  # a critic learns from groups of equal rewards too
    metrics = train(f"algorithm={preset}", f"train.resample_rounds={dynamic}")
    assert list(metrics) == [1, 2]
    for step in (1, 2):
        assert 1 <= metrics[step]["train/optimizer_steps"] <= 2  # a mini-batch without an advantage makes none
        assert math.isfinite(metrics[step]["train/loss"]) and metrics[step]["train/grad_norm"] > 0
        assert metrics[step]["train/tis_effective"] == pytest.approx(1, abs=1e-3)
        advantages = [values for record in records(tmp_path, step) for values in record.advantages.values()]
        assert any(any(values) for values in advantages)
    before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "run/model"))
    assert not torch.equal(before["model.norm.weight"], after["model.norm.weight"])
    _check_what_is_its_own(preset, metrics[2], records(tmp_path, 2))


def _check_what_is_its_own(preset: str, metrics: Mapping[str, float], groups: Sequence[GroupRecord]) -> None:
    forks = [one for group in groups for one in group.group.rollouts if one.rollout.parent is not None]
    assert bool(forks) == (preset in ("tree_grpo", "treerl"))
    own = {
        "ppo": "critic/value_mean",
        "remax": "advantage/better_than_greedy",
        "reinforce_pp": "train/kl_reward",
        "gigpo": "advantage/turns_compared",
        "tree_grpo": "advantage/rows_in_trees",
        "gspo": "train/sequence_ratio",
        "gspo_turn": "train/sequence_ratio",
        "gmpo": "train/sequence_ratio",
        "sapo": "train/gate",
        "dppo": "train/divergence",
    }
    for name in {*own.values()}:
        assert (name in metrics) == (own.get(preset) == name), name
    if preset == "tree_grpo":
        assert metrics["advantage/rows_in_trees"] == 1
    if preset == "gigpo":
        assert metrics["advantage/turns_compared"] > 0


@pytest.mark.parametrize(
    ("policy", "advantage"),
    [
        ("token_entropy", "arpo advantage.params.attribution=hard advantage.params.multiplicity=sqrt"),
        ("value_guided branch_policy.params.failed_below=2", "arpo"),
    ],
)
def test_a_branch_policy_trains_with_an_advantage_that_knows_shared_tokens(
    train: Train, tmp_path: Path, policy: str, advantage: str
) -> None:
    metrics = train("algorithm=grpo", *f"branch_policy={policy} advantage={advantage}".split())
    assert list(metrics) == [1, 2]
    for step in (1, 2):
        assert math.isfinite(metrics[step]["train/loss"]) and metrics[step]["train/grad_norm"] > 0
        assert metrics[step]["train/rows"] == TASKS * GROUP
        assert metrics[step]["advantage/shared_token_share"] > 0
        rollouts = [one.rollout for record in records(tmp_path, step) for one in record.group.rollouts]
        forks = [one for one in rollouts if one.parent is not None]
        assert forks and any(one.fork_token for one in forks) == (policy == "token_entropy")
        if advantage == "arpo":  # soft: each rollout's own advantage on all of its sampled tokens
            _check_one_advantage_per_rollout(records(tmp_path, step))


def _check_one_advantage_per_rollout(groups: Sequence[GroupRecord]) -> None:
    for record in groups:
        for one in record.group.rollouts:
            mask = [s.is_sampled for s in one.rollout.segments if s.kind is not SegmentKind.PROMPT for _ in s.token_ids]
            found = record.advantages[one.rollout.id]
            assert len({value for value, trained in zip(found, mask, strict=True) if trained}) == 1
            assert not any(value for value, trained in zip(found, mask, strict=True) if not trained)


def test_one_rollout_per_task_trains_where_the_baseline_is_not_the_groups(
    train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = train("algorithm=remax", "rollout.group_size=1")
    assert [metrics[step]["train/rows"] for step in (1, 2)] == [TASKS] * 2
    assert "nothing to learn" not in caplog.text


def test_groups_of_different_sizes_are_trained_on_without_copies(train: Train, tmp_path: Path) -> None:
    metrics = train("algorithm=grpo", "branch_policy=leaves", "data.order=file")
    for step in (1, 2):
        groups = records(tmp_path, step)
        assert sorted(len(record.group.rollouts) for record in groups) == [4, 6]
        assert metrics[step]["train/rows"] == 10 and metrics[step]["rollout/unused_per_group"] == 1
        assert [len(record.advantages) for record in groups] == [len(record.group.rollouts) for record in groups]
        for record in groups:
            assert len({one.rollout.id for one in record.group.rollouts}) == len(record.group.rollouts)


def without_times(folder: Path, step: int) -> list[GroupRecord]:
    def timeless(one: ScoredRollout) -> ScoredRollout:
        return replace(one, rollout=replace(one.rollout, stats={}))

    return [
        replace(record, group=replace(record.group, rollouts=tuple(map(timeless, record.group.rollouts))))
        for record in records(folder, step)
    ]


def test_rollouts_start_from_prefixes_of_the_step_before_also_after_a_resume(train: Train, tmp_path: Path) -> None:
    """Three steps of the same tasks at once, and once more with a stop after the second."""
    stored = (
        "algorithm=grpo",
        "branch_policy=stored_prefix",
        "branch_policy.params.probability=1",
        "data.limits.train=2",
    )
    metrics = train(*stored, "train.steps=3")
    assert [metrics[step]["rollout/prefix_starts_per_group"] for step in (1, 2, 3)] == [0, GROUP, GROUP]
    assert (metrics[1]["rollout/stored_groups"], metrics[3]["rollout/stored_groups"]) == (0, TASKS)
    whole = {step: without_times(tmp_path, step) for step in (2, 3)}
    started = [one.rollout for step in (2, 3) for record in whole[step] for one in record.group.rollouts]
    assert {one.prefix.step for one in started if one.prefix is not None} == {1, 2}
    for one in started:
        assert not any(s.is_sampled for s in one.segments if s.turn < one.first_turn)
    (tmp_path / "run").rename(tmp_path / "whole")
    train(*stored, "train.steps=2")
    train(*stored, "train.steps=3")
    assert {step: without_times(tmp_path, step) for step in (2, 3)} == whole
    weights = [load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "run")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_turns_are_compared_by_the_states_that_an_environment_names(train: Train) -> None:
    metrics = train("algorithm=gigpo", "rollout_step=named_turns")
    assert metrics[1]["advantage/turns_compared"] > 0.8  # every turn has a number that others have
