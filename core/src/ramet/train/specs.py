"""What the policy and the critic of a run are built from."""

from __future__ import annotations

from ramet.components.build import Components
from ramet.config.schema import Config
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
    )


def critic_spec(config: Config, components: Components, total_steps: int) -> CriticSpec | None:
    """None if no algorithm needs values. The estimator may bring the critic's options as `critic`."""
    if Need.VALUES not in components.advantage.needs:
        return None
    return CriticSpec(
        model=config.model,
        policy=config.policy,
        train=config.train,
        options=getattr(components.advantage, "critic", CriticOptions()),
        total_steps=total_steps,
        seed=config.run.seed,
    )
