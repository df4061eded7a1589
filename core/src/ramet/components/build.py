"""From configuration to objects: the components that a run names, built through the registries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from ramet.component_checks import is_tool_set
from ramet.components.services import RunServices, start_component
from ramet.config.schema import BenchmarkConfig, Config
from ramet.errors import RametError
from ramet.plugins import Plugins, load_plugins
from ramet.rollout.branching.decisions import ask
from ramet.rollout.scoring import Scorer, WeightedReward
from ramet.rollout.stateful import StatefulComponent, fork_problems, step_component
from ramet.types import (
    AdvantageEstimator,
    Benchmark,
    BranchPolicy,
    GroupView,
    Need,
    PolicyLoss,
    RolloutStep,
    Start,
    Task,
    user_prompt,
)


def build_step(config: Config) -> RolloutStep:
    built: RolloutStep = load_plugins().get("rollout_steps", config.rollout_step.name).build(config.rollout_step.params)
    return built


def build_branch_policy(config: Config) -> BranchPolicy:
    entry = load_plugins().get("branch_policies", config.branch_policy.name)
    built: BranchPolicy = entry.build(config.branch_policy.params)
    return built


def build_advantage(config: Config) -> AdvantageEstimator:
    built: AdvantageEstimator = load_plugins().get("advantages", config.advantage.name).build(config.advantage.params)
    return built


def build_loss(config: Config) -> PolicyLoss:
    built: PolicyLoss = load_plugins().get("policy_losses", config.policy_loss.name).build(config.policy_loss.params)
    return built


def build_scorer(config: Config) -> Scorer:
    plugins = load_plugins()
    return Scorer([_weighted(plugins, name, config) for name in config.rewards])


def _weighted(plugins: Plugins, name: str, config: Config) -> WeightedReward:
    settings = config.rewards[name]
    entry = plugins.get("rewards", settings.use or name)
    return WeightedReward(
        name=name,
        plugin=entry.plugin,
        reward=entry.build(settings.params),
        weight=settings.weight,
        sources=None if settings.sources is None else frozenset(settings.sources),
        timeout_s=settings.timeout_s,
    )


async def start_rewards(rewards: Sequence[WeightedReward], services: RunServices) -> None:
    """Before the first score. Raises as `start_component` does."""
    for one in rewards:
        who = f"reward {one.name!r} of plugin {one.plugin!r}"
        await start_component(one.reward, who, services.of(f"rewards.{one.name}"))


def wants_services(config: Config) -> bool:
    """Whether a component of this run is started, so that a limiter may be asked for."""
    plugins = load_plugins()
    tools: list[Any] = [plugins.get("tools", one.use or name).build(one.params) for name, one in config.tools.items()]
    rewards = [one.reward for one in build_scorer(config).rewards]
    return any(hasattr(one, "start") or is_tool_set(one) for one in [*tools, *rewards])


def build_benchmarks(config: Config) -> dict[str, Benchmark]:
    plugins = load_plugins()
    return {
        name: plugins.get("benchmarks", one.use or name).build(one.params) for name, one in config.benchmarks.items()
    }


def build_benchmark(config: Config, name: str) -> Benchmark:
    """One that data names; with options of its own if `benchmarks` has them. Raises `ConfigError`."""
    chosen = config.benchmarks.get(name, BenchmarkConfig())
    built: Benchmark = load_plugins().get("benchmarks", chosen.use or name).build(chosen.params)
    return built


def check_forks(config: Config, tools: Sequence[StatefulComponent]) -> list[str]:
    """Whether the branch policy can fork the states of these tools and of the environment."""
    return fork_problems([*step_component(build_step(config)), *tools], build_branch_policy(config))


def _start_a_group(config: Config) -> None:
    """A branch policy is pure, so it can be asked about a group that nobody plays."""
    budget = config.rollout.group_size
    task = Task(id="check", prompt=user_prompt("check"))
    view = GroupView(task=task, budget=budget, budget_left=budget, rollouts=(), vocab_size=1)
    ask(build_branch_policy(config), Start(), view, Random(0))


def check_components(config: Config, *, training: bool) -> list[str]:
    """Build everything that is light once, so that a broken plugin or option shows before anything starts."""
    builders: list[Callable[[Config], Any]] = [build_step]
    if training:
        builders += [_start_a_group, build_advantage, build_loss, build_scorer]
    problems = []
    for build in builders:
        try:
            build(config)
        except RametError as error:
            problems.append(str(error))
    if training and not problems and config.train.resample_rounds and Need.VALUES in build_advantage(config).needs:
        problems.append(
            f"train.resample_rounds={config.train.resample_rounds}: replaces groups of equal rewards, from which "
            f"advantage={config.advantage.name} learns too; set 0"
        )
    return problems
