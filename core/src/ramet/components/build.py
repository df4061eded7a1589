"""From configuration to objects: the components that a run names, built through the registries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ramet.component_checks import is_tool_set
from ramet.components.services import RunServices, start_component
from ramet.config.schema import BenchmarkConfig, Config
from ramet.plugins import Plugins, load_plugins
from ramet.rollout.scoring import Scorer, WeightedReward
from ramet.types import (
    AdvantageEstimator,
    Benchmark,
    BranchPolicy,
    Need,
    PolicyLoss,
    RolloutStep,
)


class Components:
    """What a run's configuration names, built through the registries.

    Each component is built when it is first asked for, and only once: a job's preparation makes one of these and hands
    it on. Ray's rollout workers are other processes; each makes its own from the configuration that it is sent. Asking
    raises `ConfigError` or `PluginError` where a component cannot be built.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._benchmarks: dict[str, Benchmark] = {}

    @cached_property
    def step(self) -> RolloutStep:
        chosen = self._config.rollout_step
        built: RolloutStep = load_plugins().get("rollout_steps", chosen.name).build(chosen.params)
        return built

    @cached_property
    def branch_policy(self) -> BranchPolicy:
        chosen = self._config.branch_policy
        built: BranchPolicy = load_plugins().get("branch_policies", chosen.name).build(chosen.params)
        return built

    @cached_property
    def advantage(self) -> AdvantageEstimator:
        chosen = self._config.advantage
        built: AdvantageEstimator = load_plugins().get("advantages", chosen.name).build(chosen.params)
        return built

    @cached_property
    def loss(self) -> PolicyLoss:
        chosen = self._config.policy_loss
        built: PolicyLoss = load_plugins().get("policy_losses", chosen.name).build(chosen.params)
        return built

    @cached_property
    def scorer(self) -> Scorer:
        plugins = load_plugins()
        return Scorer([_weighted(plugins, name, self._config) for name in self._config.rewards])

    def benchmark(self, name: str) -> Benchmark:
        """One that the data or `benchmarks` name, with the options that `benchmarks` has for it."""
        if name not in self._benchmarks:
            chosen = self._config.benchmarks.get(name, BenchmarkConfig())
            self._benchmarks[name] = load_plugins().get("benchmarks", chosen.use or name).build(chosen.params)
        return self._benchmarks[name]


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


def needs_rewards(policy: BranchPolicy) -> bool:
    """Whether rollouts are scored where they run, for `Scored`."""
    return Need.REWARDS in getattr(policy, "needs", frozenset())


async def start_rewards(rewards: Sequence[WeightedReward], services: RunServices) -> None:
    """Before the first score. Raises as `start_component` does."""
    for one in rewards:
        who = f"reward {one.name!r} of plugin {one.plugin!r}"
        await start_component(one.reward, who, services.of(f"rewards.{one.name}"))


def wants_services(config: Config) -> bool:
    """Whether a component of this run is started, so that a limiter may be asked for."""
    plugins = load_plugins()
    tools: list[Any] = [plugins.get("tools", one.use or name).build(one.params) for name, one in config.tools.items()]
    rewards = [one.reward for one in Components(config).scorer.rewards]
    return any(hasattr(one, "start") or is_tool_set(one) for one in [*tools, *rewards])
