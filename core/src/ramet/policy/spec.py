"""The arguments of policy and critic workers: picklable, so that a Ray actor can get them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ramet.config.schema import KlEstimator, ModelConfig, PolicyConfig, TrainConfig
from ramet.types import CriticOptions, Need, PolicyLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    model: ModelConfig
    policy: PolicyConfig
    train: TrainConfig
    policy_loss: PolicyLoss
    temperature: float  # of training rollouts; all log-probabilities and entropies are those at this temperature
    max_response_tokens: int  # the constant of the `…-sum-norm` aggregations
    total_steps: int  # training steps of the complete run, for the schedule
    seed: int
    needs: frozenset[Need] = field(default_factory=frozenset)  # of the advantage estimator
    teacher: ModelConfig | None = None  # scores rollouts for the estimator; None: nothing, or the policy does
    critic_warmup_steps: int = 0  # first steps, without an update of the policy; its schedule begins then

    @property
    def kl_in_loss(self) -> bool:
        return self.train.kl_coef > 0 and self.train.kl_estimator is not KlEstimator.K1_REWARD

    @property
    def skips_without_advantage(self) -> bool:
        """Whether a row whose advantages are all 0 adds nothing to loss and gradient, so that it need not be computed.

        False if another term than the policy loss uses it.
        """
        if self.kl_in_loss or self.train.entropy_coef or self.policy_loss.needs & {Need.ENTROPY, Need.REFERENCE}:
            return False
        return bool(getattr(self.policy_loss, "zero_without_advantage", False))  # may be left out

    @property
    def needs_reference(self) -> bool:
        return self.train.kl_coef > 0 or Need.REFERENCE in self.needs | self.policy_loss.needs


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSpec:
    """Number types, mini-batches, schedule and sharding are the policy's; the learning rate is `options.lr`."""

    model: ModelConfig
    policy: PolicyConfig  # its learning rate is not used
    train: TrainConfig
    options: CriticOptions
    total_steps: int  # training steps of the complete run, for the schedule
    seed: int
