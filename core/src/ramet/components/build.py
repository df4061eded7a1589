"""Objects from configuration: the components that a run names, built through the registries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar, cast

from ramet.components.services import RunServices
from ramet.config.schema import BenchmarkConfig, Combine, ComponentConfig, Config, RolloutStepConfig
from ramet.errors import ConfigError
from ramet.plugins import Plugins, load_plugins
from ramet.plugins.lifecycle import start_component
from ramet.plugins.registry import Registry
from ramet.rollout.scoring import Scorer, WeightedReward
from ramet.types import (
    AdvantageEstimator,
    Benchmark,
    BranchPolicy,
    Need,
    PolicyLoss,
    RolloutStep,
)
from ramet.types.branch import policy_needs

T = TypeVar("T")
LOGGED = frozenset({"mean", "std", "roots_mean", "unjudged_rollouts"})  # of all rewards together, as reward/NAME


class Components:
    """The components of a run's configuration, built through the registries.

    Each component is built when it is first asked for, and only once: a job's preparation makes one of these and hands
    it on. Ray's rollout workers are other processes; each makes its own from the configuration that it is sent. Asking
    raises `ConfigError` or `PluginError` where a component cannot be built.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._benchmarks: dict[str, Benchmark] = {}

    @cached_property
    def step(self) -> RolloutStep:
        """The rollout step, or an agent, which has other methods: see `is_agent`."""
        return cast(RolloutStep, _build(load_plugins().registries.rollout_steps, self._config.rollout_step))

    @cached_property
    def branch_policy(self) -> BranchPolicy:
        return _build(load_plugins().registries.branch_policies, self._config.branch_policy)

    @cached_property
    def advantage(self) -> AdvantageEstimator:
        return _build(load_plugins().registries.advantages, self._config.advantage)

    @cached_property
    def loss(self) -> PolicyLoss:
        return _build(load_plugins().registries.policy_losses, self._config.policy_loss)

    @cached_property
    def scorer(self) -> Scorer:
        plugins = load_plugins()
        return Scorer([_weighted(plugins, name, self._config) for name in self._config.rewards])

    def benchmark(self, name: str) -> Benchmark:
        """One that the data or `benchmarks` name, with the options that `benchmarks` has for it.

        There is one instance for a name: training and validation data that name the same one read their splits from it.
        """
        if name not in self._benchmarks:
            settings = self._config.benchmarks.get(name, BenchmarkConfig())
            self._benchmarks[name] = (
                load_plugins().get("benchmarks", settings.use or name).build(settings.params, key=f"benchmarks.{name}")
            )
        return self._benchmarks[name]


def _build(registry: Registry[T], settings: ComponentConfig | RolloutStepConfig) -> T:
    return registry.get(settings.name, load_plugins().absent).build(settings.params)


def _weighted(plugins: Plugins, name: str, config: Config) -> WeightedReward:
    settings = config.rewards[name]
    if name in LOGGED:
        raise ConfigError(f"rewards.{name}: the run itself logs reward/{name}; choose rewards.NAME.use={name}")
    entry = plugins.get("rewards", settings.use or name)
    return WeightedReward(
        name=name,
        plugin=entry.plugin,
        reward=entry.build(settings.params, key=f"rewards.{name}"),
        weight=settings.weight,
        clip=None if settings.clip is None else (settings.clip[0], settings.clip[1]),
        multiplies=settings.combine is Combine.MULTIPLY,
        sources=None if settings.sources is None else frozenset(settings.sources),
        timeout_s=settings.timeout_s,
        retries=settings.retries,
        max_unjudged=settings.max_unjudged,
    )


def needs_rewards(policy: BranchPolicy) -> bool:
    """Whether rollouts are scored where they run, for `Scored`."""
    return Need.REWARDS in policy_needs(policy)


async def start_rewards(rewards: Sequence[WeightedReward], services: RunServices) -> None:
    """Start the rewards, before the first score. Raises as `start_component` does."""
    for reward in rewards:
        who = f"reward {reward.name!r} of plugin {reward.plugin!r}"
        await start_component(reward.reward, who, services.of(f"rewards.{reward.name}"))


def are_started(rewards: Sequence[WeightedReward]) -> bool:
    """Whether one of them has a `start`, and may ask for a limiter there."""
    return any(hasattr(reward.reward, "start") for reward in rewards)


def may_move(rewards: Sequence[WeightedReward]) -> bool:
    """Whether any process may score a rollout: each score depends on its rollout only (`per_rollout`), and no reward
    has a `start`, in which it would get what it shares over the run.
    """
    return not are_started(rewards) and all(getattr(reward.reward, "per_rollout", False) for reward in rewards)
