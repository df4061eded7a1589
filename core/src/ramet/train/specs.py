"""The specifications of a run's policy and critic."""

from __future__ import annotations

from ramet.components.build import Components
from ramet.config.schema import Config
from ramet.models.teacher import teacher_config
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.types import CriticOptions, Need


def policy_spec(config: Config, components: Components, total_steps: int) -> PolicySpec:
    return PolicySpec(
        model=config.model,
        policy=config.policy,
        train=config.train,
        policy_loss=components.loss,
        temperature=config.rollout.temperature,
        max_response_tokens=config.rollout.max_response_tokens,
        total_steps=total_steps,
        seed=config.run.seed,
        needs=components.advantage.needs,
        teacher=teacher_config(config),
        critic_warmup_steps=_critic_options(components).warmup_steps if _needs_critic(components) else 0,
    )


def critic_spec(config: Config, components: Components, total_steps: int) -> CriticSpec | None:
    """Return the critic's spec; None if no algorithm needs values."""
    if not _needs_critic(components):
        return None
    return CriticSpec(
        model=config.model,
        policy=config.policy,
        train=config.train,
        options=_critic_options(components),
        total_steps=total_steps,
        seed=config.run.seed,
    )


def _needs_critic(components: Components) -> bool:
    return Need.VALUES in components.advantage.needs


def _critic_options(components: Components) -> CriticOptions:
    """The estimator may bring them as `critic`."""
    options: CriticOptions = getattr(components.advantage, "critic", CriticOptions())
    return options
