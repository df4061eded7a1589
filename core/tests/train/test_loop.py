"""What the options of `train` do to a whole run: `ramet train` with a tiny model, two steps, no tools."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ramet.cluster.local import LocalBackend, LocalRanks, LocalRollouts
from ramet.config.compose import compose
from ramet.errors import ConfigErrors, InfraError, PluginError
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.policy.model_trainer import ModelTrainer
from ramet.policy.spec import PolicySpec
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.record import read_records
from ramet.train.loop import Loop
from ramet.train.training import run
from ramet.types import AdvantageInputs, AdvantageOutput, Fault, Group, Need, Rollout, Score

pytestmark = pytest.mark.skipif(
    "format" not in load_plugins().registries.rewards, reason="the plugin ramet-rewards is not installed"
)
Train = Callable[..., dict[int, Mapping[str, float]]]
TASKS, GROUP = 2, 2  # of a step


class Alternating:
    """Every other rollout is good, whatever its reward: an untrained model's rewards are all the same."""

    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        signs = 1.0 - 2.0 * (torch.arange(len(batch.rewards)) % 2)
        return AdvantageOutput(advantages=signs[:, None] * batch.mask)


class AgainstGreedy(Alternating):
    """Keeps the baselines that it was given."""

    needs = frozenset({Need.GREEDY_ROLLOUT})
    given: list[torch.Tensor | None] = []  # noqa: RUF012 - estimators are built anew, what they saw is looked at here

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        self.given.append(batch.greedy_rewards)
        return super().__call__(batch)


class SeesRewards(Alternating):
    """Keeps the token rewards that it was given."""

    discounted = True

    given: list[tuple[torch.Tensor, torch.Tensor]] = []  # noqa: RUF012 - as above

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        assert batch.token_rewards is not None
        self.given.append((batch.mask, batch.token_rewards))
        return super().__call__(batch)


class ReadsOld(Alternating):
    needs = frozenset({Need.OLD_LOGPROBS})

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        assert batch.old_logprobs is not None and bool((batch.old_logprobs[batch.mask] < 0).all())
        return super().__call__(batch)


class BreaksTheContract:
    """Gives the rollouts of one task of a later step no number."""

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | None]:
        return [math.nan if rollout.task.id.endswith("/5") else 0.25 for rollout in group]


class ByToken:
    """Takes 0.5 off the first token of every rollout."""

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[Score]:
        return [Score(value=0.0, token_rewards={0: -0.5}) for _ in group]


class TakesAMetric(Alternating):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return replace(super().__call__(batch), metrics={"reward/mean": 7.0})


class WithCritic(Alternating):
    needs = frozenset({Need.VALUES})


class JudgesAllButOne:
    """Leaves the first rollout of a training group unjudged."""

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | None]:
        return [None if len(group) > 1 and rollout.id == "0" else 0.25 for rollout in group]


@pytest.fixture(autouse=True)
def components(register: Callable[..., None]) -> None:
    register("advantage", "alternating", Alternating)
    register("advantage", "against_greedy", AgainstGreedy)
    register("advantage", "reads_old", ReadsOld)
    register("advantage", "sees_rewards", SeesRewards)
    register("advantage", "takes_a_metric", TakesAMetric)
    register("advantage", "with_critic", WithCritic)
    register("rewards", "but_one", JudgesAllButOne)
    register("rewards", "by_token", ByToken)
    register("rewards", "breaks", BreaksTheContract)
    AgainstGreedy.given.clear()
    SeesRewards.given.clear()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=2, heads=2, intermediate=64, initializer_range=0.2
    )


def tasks(path: Path, first: int, count: int) -> Path:
    rows = [{"prompt": f"{i}+1?", "answer": str(i + 1), "data_source": "sums"} for i in range(first, first + count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def train(model: Path, tmp_path: Path) -> Train:
    """Trains with these overrides; the metrics of each step."""

    def start(*more: str) -> dict[int, Mapping[str, float]]:
        data, valid = tasks(tmp_path / "train.jsonl", 0, 6), tasks(tmp_path / "valid.jsonl", 50, 3)
        overrides = [
            f"model.path={model}", "model.device=cpu", f"data.train=[{data}]", f"data.valid=[{valid}]",
            f"run.root={tmp_path}", "run.name=run", "run.deterministic=true", "data.max_prompt_tokens=32",
            "rollout_step.system_prompt=never", "rollout.max_response_tokens=8", f"rollout.group_size={GROUP}",
            "rollout.max_concurrent=8", "engine.params.slots=8", "tools=[]", "rewards=[format]",
            "rewards.format.params.bad=0.25", "advantage=alternating", "train.steps=2",
            f"train.tasks_per_step={TASKS}", "policy.lr=1e-2", "trackers=[jsonl]", *more,
        ]  # fmt: skip
        run(compose(overrides, job="train"))
        lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
        return {line["step"]: line for line in lines}

    return start


def validated(metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
    return [step for step, found in metrics.items() if "valid/reward" in found]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (["train.eval_first=true", "train.eval_every=2"], [0, 2]),
        (["train.eval_every=1"], [1, 2]),
        (["train.eval_first=true"], [0]),
        ([], []),
    ],
)
def test_validation_happens_at_the_steps_that_were_asked_for(
    train: Train, options: list[str], steps: list[int]
) -> None:
    metrics = train(*options)
    assert validated(metrics) == steps
    for step in steps:
        assert metrics[step]["valid/reward"] == metrics[step]["valid/reward/sums"] == 0.25
        assert metrics[step]["valid/masked_share"] == 0


@pytest.mark.parametrize("staleness", [0, 1])
def test_rollouts_that_no_reward_judged_show_in_their_own_step_beside_validation(train: Train, staleness: int) -> None:
    metrics = train(
        "rewards=[format,but_one]", "train.eval_every=1", "train.tasks_per_step=1", "rollout.group_size=20",
        "rollout.max_concurrent=20", "engine.params.slots=20", "run.deterministic=false",
        f"train.staleness={staleness}",
    )  # fmt: skip
    for step in (1, 2):
        assert metrics[step]["rollout/masked_share"] == pytest.approx(1 / 20)
        assert metrics[step]["reward/unjudged_rollouts"] == 1
        assert metrics[step]["valid/masked_share"] == 0


def test_validation_does_not_change_what_is_learned(train: Train, tmp_path: Path) -> None:
    with_validation = train("train.eval_first=true", "train.eval_every=1")
    (tmp_path / "run").rename(tmp_path / "before")
    without = train()
    for step in (1, 2):
        assert with_validation[step]["train/loss"] == without[step]["train/loss"]


@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_a_reference_is_loaded_for_a_kl_alone(
    train: Train, coefficient: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramet.policy import rank

    loaded, load = [], rank.reference_model

    def counting(spec: PolicySpec, **place: Any) -> object:
        loaded.append(spec)
        return load(spec, **place)

    monkeypatch.setattr(rank, "reference_model", counting)
    metrics = train(f"train.kl_coef={coefficient}")
    assert len(loaded) == (coefficient > 0)
    if coefficient:
        assert metrics[1]["train/kl_reference"] == pytest.approx(0, abs=1e-6)  # the policy is the reference yet
        assert metrics[2]["train/kl_reference"] > 1e-4
    else:
        assert not any("train/kl_reference" in found for found in metrics.values())


def test_a_kl_in_the_reward_is_in_the_token_rewards_and_not_in_the_loss(train: Train, tmp_path: Path) -> None:
    """The estimator's advantages are the same whatever it is given."""
    without = train()
    (tmp_path / "run").rename(tmp_path / "without")
    with_kl = train("advantage=sees_rewards", "train.kl_coef=0.5", "train.kl_estimator=k1-reward")
    assert with_kl[1]["train/kl_reward"] == pytest.approx(0, abs=1e-6)  # the policy is the reference yet
    assert with_kl[2]["train/kl_reward"] != pytest.approx(0, abs=1e-4)
    assert "train/kl_coef" not in with_kl[2]  # it is fixed
    assert [with_kl[step]["train/loss"] for step in (1, 2)] == [without[step]["train/loss"] for step in (1, 2)]
    mask, rewards = SeesRewards.given[1]
    assert not rewards[~mask].count_nonzero()
    by_rollout = rewards.sum(1) / mask.sum(1)
    assert by_rollout.mean().item() == pytest.approx(-0.5 * with_kl[2]["train/kl_reward"], rel=1e-4)


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_the_coefficient_follows_its_target_also_over_a_resume(
    train: Train, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramet.train.learning.KL_HORIZON", 8)
    options = (
        "train.kl_coef=0.2", "train.kl_target=1e-9",
        f"train.kl_estimator={'k2' if where == 'loss' else 'k1-reward'}", "train.steps=3",
    )  # fmt: skip
    whole = [metrics["train/kl_coef"] for _, metrics in sorted(train(*options).items())]
    assert whole[0] == 0.2
    assert whole[2] == pytest.approx(whole[1] * (1 + 0.2 * 4 / 8))
    (tmp_path / "run").rename(tmp_path / "whole")
    train(*options[:-1], "train.steps=2")
    resumed = train(*options, "run.allow_config_change=true")
    assert [metrics["train/kl_coef"] for _, metrics in sorted(resumed.items())] == whole


def test_minibatches_and_epochs_multiply_to_optimiser_steps_and_ratios_leave_one(train: Train) -> None:
    metrics = train("train.minibatches=2", "train.epochs=2")
    for step in (1, 2):
        assert metrics[step]["train/optimizer_steps"] == 4
        assert metrics[step]["train/ratio_p99"] > 1.01 > 0.99 > metrics[step]["train/ratio_p01"]


def test_one_optimiser_step_keeps_all_ratios_at_one(train: Train) -> None:
    metrics = train()
    for step in (1, 2):
        assert metrics[step]["train/optimizer_steps"] == 1
        assert metrics[step]["train/ratio_max"] == pytest.approx(1, abs=1e-6)


def test_the_engines_log_probabilities_serve_as_the_trainers_own(train: Train, tmp_path: Path) -> None:
    trainer = train("train.old_logprobs=trainer")[1]
    (tmp_path / "run").rename(tmp_path / "before")
    engine = train("train.old_logprobs=engine")[1]
    assert engine["train/engine_gap_max"] < 1e-4
    for name in ("train/loss", "train/grad_norm", "train/entropy"):
        assert engine[name] == pytest.approx(trainer[name], rel=1e-3, abs=1e-5)


def test_an_estimator_that_needs_a_greedy_rollout_gets_one_reward_per_row(train: Train) -> None:
    train("advantage=against_greedy")
    assert len(AgainstGreedy.given) == 2
    for rewards in AgainstGreedy.given:
        assert rewards is not None and rewards.tolist() == [0.25] * (TASKS * GROUP)


def test_the_score_of_a_greedy_rollout_has_its_token_rewards_as_those_of_others_have(train: Train) -> None:
    train("advantage=against_greedy", "rewards=[format,by_token]", "train.steps=1")
    (rewards,) = AgainstGreedy.given
    assert rewards is not None and rewards.tolist() == [-0.25] * (TASKS * GROUP)


@pytest.fixture
def lost_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infrastructure fails the first greedy rollout of every step."""
    run = LocalRollouts.run

    async def losing(self: LocalRollouts, request: RolloutRequest, *, on_group: Any) -> Any:
        def lose(group: Group) -> Group:
            fault = Fault(where="engine", message="lost")
            return replace(group, rollouts=(replace(group.rollouts[0], fault=fault), *group.rollouts[1:]))

        if request.plan.salt != "greedy":
            return await run(self, request, on_group=on_group)
        first, *others = await run(self, request)
        found = [lose(first), *others]
        for group in found:
            on_group(group)
        return found

    monkeypatch.setattr(LocalRollouts, "run", losing)


@pytest.mark.usefixtures("lost_greedy")
def test_a_group_whose_greedy_rollout_was_masked_is_left_out_of_the_update(train: Train, tmp_path: Path) -> None:
    metrics = train("advantage=against_greedy")
    assert [None if given is None else given.tolist() for given in AgainstGreedy.given] == [[0.25] * GROUP] * 2
    for step in (1, 2):
        assert metrics[step]["train/groups_without_baseline"] == 1
        assert metrics[step]["train/rows"] == GROUP
        assert metrics[step]["train/optimizer_steps"] == 1
        first, second = read_records(tmp_path / f"run/rollouts/step_{step:06d}.jsonl.gz")
        assert (len(first.advantages), len(second.advantages)) == (0, GROUP)


@pytest.mark.parametrize("staleness", [0, 1])
def test_greedy_rollouts_take_nothing_from_the_metrics_of_a_step_that_plays_meanwhile(
    train: Train, staleness: int
) -> None:
    metrics = train(
        "advantage=against_greedy", "run.deterministic=false", f"train.staleness={staleness}", "train.steps=3"
    )
    assert [metrics[step]["rollout/rollouts"] for step in (1, 2, 3)] == [TASKS * GROUP] * 3


def test_counts_of_tools_and_engine_are_those_of_training_whatever_validation_plays_between(train: Train) -> None:
    metrics = train(
        "run.deterministic=false", "train.staleness=1", "train.steps=3", "train.eval_every=1", "train.eval_first=true"
    )
    assert validated(metrics) == [0, 1, 2, 3]
    steps = [metrics[step] for step in (1, 2, 3)]
    counted, played = (
        sum(found[name] for found in steps) for name in ("engine/sampled_tokens", "rollout/executed_sampled_tokens")
    )
    assert counted == played > 0
    assert all(0 <= found["engine/busy_share"] <= 1 for found in steps)


def test_a_group_that_fails_ahead_of_its_step_ends_the_run_at_once(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def learn(*_: Any) -> None:
        await asyncio.sleep(300)

    monkeypatch.setattr("ramet.train.learning.Learner.learn", learn)
    more = ["run.deterministic=false", "train.staleness=2", "train.steps=3", "data.order=file"]
    with pytest.raises(PluginError, match=r"reward 'breaks'"):
        train("rewards=[format,breaks]", *more)
    assert not (tmp_path / "run/metrics.jsonl").exists()  # no step has ended


def test_the_old_policy_costs_no_pass_where_it_is_the_policy_itself(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[int] = []
    compute = ModelTrainer.compute

    def counting(self: ModelTrainer, what: str, rows: Any, *options: Any, **named: Any) -> Any:
        scored.append(len(rows))
        return compute(self, what, rows, *options, **named)

    monkeypatch.setattr(ModelTrainer, "compute", counting)
    without = train()
    assert scored == []
    (tmp_path / "run").rename(tmp_path / "before")
    with_pass = train("advantage=reads_old")
    assert scored == [TASKS * GROUP] * 2
    for step in (1, 2):
        learned = {name for name in without[step] if name.startswith("train/") and not name.endswith("_s")}
        assert {name: without[step][name] for name in learned} == {name: with_pass[step][name] for name in learned}
        assert {"train/loss", "train/grad_norm", "train/ratio_max", "train/engine_gap_mean"} <= learned
    (tmp_path / "run").rename(tmp_path / "with_pass")
    scored.clear()
    train("train.minibatches=2")
    assert scored == [TASKS * GROUP] * 2


def test_other_estimators_cost_no_greedy_rollout(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgainstGreedy, "needs", frozenset())
    train("advantage=against_greedy")
    assert AgainstGreedy.given == [None, None]


def test_the_critic_learns_alone_while_it_warms_up(train: Train) -> None:
    metrics = train("algorithm=ppo", "train.minibatches=1", "advantage=gae", "advantage.params.critic_warmup_steps=1")
    assert "train/loss" not in metrics[1] and "train/loss" in metrics[2]
    assert metrics[1]["critic/value_mean"] == 0 and metrics[2]["critic/value_mean"] != 0
    assert all(metrics[step]["critic/loss"] > 0 for step in (1, 2))


def test_an_estimator_with_a_critic_must_say_what_it_learns(train: Train) -> None:
    with pytest.raises(PluginError, match=r"WithCritic.* needs values but returned no returns"):
        train("advantage=with_critic")


def test_an_estimator_cannot_replace_a_metric_of_the_run(train: Train) -> None:
    with pytest.raises(PluginError, match=r"TakesAMetric.*: its metrics name reward/mean, which the run logs itself"):
        train("advantage=takes_a_metric")


def test_with_lora_the_engine_gets_the_merged_model_and_samples_as_the_trainer_scores(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    synced: list[set[str]] = []
    update = LocalRollouts.update_weights

    async def noting(self: LocalRollouts, weights: list[tuple[str, torch.Tensor]], *args: Any, **named: Any) -> None:
        synced.append({name for name, _ in weights})
        await update(self, weights, *args, **named)

    monkeypatch.setattr(LocalRollouts, "update_weights", noting)
    metrics = train("policy.lora_rank=4", "train.steps=3")
    assert len(synced) == 3 and all(names == synced[0] for names in synced)
    assert "model.layers.0.self_attn.q_proj.weight" in synced[0]
    assert not any("lora_" in name for name in synced[0])
    assert metrics[3]["train/engine_gap_max"] < 1e-4
    assert metrics[3]["train/grad_norm"] > 0


def played(run: Path) -> dict[int, list[str]]:
    """Step -> prompts of all its groups, in the order of its record."""
    return {
        int(path.name[5:11]): [record.group.task.prompt[-1].content for record in read_records(path)]
        for path in sorted((run / "rollouts").iterdir())
    }


def test_groups_of_equal_rewards_are_replaced_recorded_and_counted_also_after_a_stop_in_the_middle(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["train.resample_rounds=1", "train.save_every=1", "train.steps=3"]
    metrics = train(*options)
    assert [metrics[step]["group/replaced"] for step in (1, 2, 3)] == [TASKS] * 3
    whole = played(tmp_path / "run")
    assert all(len(set(prompts)) == 2 * TASKS for prompts in whole.values())
    assert len(set(whole[1] + whole[2][TASKS:])) == 6  # an epoch goes on where the step before stopped drawing

    finish = Loop._finish

    async def cut(self: Loop, step: int, *rest: Any) -> None:
        if step == 2:
            raise RuntimeError("the power went out")
        await finish(self, step, *rest)

    monkeypatch.setattr(Loop, "_finish", cut)
    with pytest.raises(RuntimeError, match="power"):
        train(*options, "run.name=cut")
    monkeypatch.setattr(Loop, "_finish", finish)
    train(*options, "run.name=cut")
    assert played(tmp_path / "cut") == whole


def test_a_failed_run_closes_its_workers_only_when_the_save_in_the_background_is_complete(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, finish, close, saved = LocalRanks.write_staged, Loop._finish, LocalBackend.close, list[bool]()

    def slow(self: LocalRanks, folder: Path) -> None:
        time.sleep(0.5)
        write(self, folder)

    async def cut(self: Loop, step: int, *rest: Any) -> None:
        if step == 2:
            raise RuntimeError("the power went out")
        await finish(self, step, *rest)

    async def closing(self: LocalBackend) -> None:
        saved.append((tmp_path / "run/checkpoints/step_000001").exists())
        await close(self)

    monkeypatch.setattr(LocalRanks, "write_staged", slow)
    monkeypatch.setattr(Loop, "_finish", cut)
    monkeypatch.setattr(LocalBackend, "close", closing)
    with pytest.raises(RuntimeError, match="power"):
        train("train.save_every=1", "train.async_save=true")
    assert saved == [True]


def test_one_rollout_per_task_is_refused_where_rollouts_are_compared(train: Train) -> None:
    problems = {}
    for keys in ("advantage=grpo", "advantage=reinforce_pp train.resample_rounds=1"):
        with pytest.raises(ConfigErrors) as found:
            train(*keys.split(), "rollout.group_size=1")
        problems[keys] = found.value.problems
    assert [*problems.values()] == [
        [
            "rollout.group_size=1: must be at least 2, since advantage=grpo compares the rollouts of a task; "
            "advantage=gae, reinforce_pp and remax take 1"
        ],
        [
            "train.resample_rounds=1: replaces groups of equal rewards, as all are with rollout.group_size=1; set 0"
        ],
    ]  # fmt: skip


@pytest.mark.parametrize("saves", [True, False], ids=["", "on a full disk"])
def test_a_run_whose_weights_do_not_reach_the_engines_has_saved_them(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, saves: bool
) -> None:
    whole = train()

    async def broken(self: LocalBackend, version: int) -> None:
        raise InfraError("the vllm engine failed: the weight update: KeyError: 'ipc'")

    def full(self: LocalRanks, folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "sync_weights", broken)
        if not saves:
            patch.setattr(LocalRanks, "write_staged", full)
        with pytest.raises(InfraError, match="the weight update: KeyError: 'ipc'"):
            train("run.name=cut", "train.save_every=100")
    [line] = [line for line in caplog.messages if line.startswith("resume with: ramet train")]
    assert line.endswith("run.name=cut")
    assert (tmp_path / "cut/checkpoints/step_000001").is_dir() == saves
    if saves:
        train("run.name=cut", "train.save_every=100")
        again = json.loads((tmp_path / "cut/metrics.jsonl").read_text().splitlines()[-1])
        assert [again[name] for name in LEARNED] == [whole[2][name] for name in LEARNED]
    else:
        assert any(line.startswith("CHECKPOINT OF STEP 1 NOT SAVED: ") for line in caplog.messages)


LEARNED = ("train/loss", "train/grad_norm", "reward/mean")


def test_replacing_groups_is_refused_where_equal_rewards_teach_too(train: Train) -> None:
    with pytest.raises(ConfigErrors) as found:
        train("advantage=with_critic", "train.resample_rounds=2")
    assert found.value.problems == [
        "train.resample_rounds=2: replaces groups of equal rewards, from which advantage=with_critic learns too; set 0"
    ]


def write_sources(path: Path) -> Path:
    rows = [{"prompt": f"{i}+1?", "answer": str(i + 1), "data_source": "ab"[i % 2], "level": i // 2} for i in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_weights_difficulty_and_curriculum_choose_what_is_trained_on(train: Train, tmp_path: Path) -> None:
    data = write_sources(tmp_path / "levels.jsonl")
    chosen = [
        f"data.train=[{data}]",
        "data.columns.difficulty=level",
        "data.order=curriculum",
        "train.tasks_per_step=4",
    ]
    train(*chosen, "data.weights={a: 3, b: 1}", "data.difficulty.max=4", "data.difficulty.min=1")
    assert played(tmp_path / "run") == {1: ["2+1?", "4+1?", "3+1?", "6+1?"], 2: ["8+1?", "2+1?", "5+1?", "4+1?"]}
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert (manifest["data"]["train"]["tasks"], manifest["data"]["train"]["by_difficulty"]) == (12, 4)
