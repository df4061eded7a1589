"""Options of the built-in advantage estimators. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.types.option import option

EPS_HELP = "added to the standard deviation, against division by 0"


@dataclass(kw_only=True, slots=True)
class GrpoConfig:
    """GRPO (arXiv 2402.03300): reward minus the group's mean, divided by its standard deviation."""

    normalize_std: bool = option(
        True,
        "divide by the group's standard deviation; false: Dr. GRPO",
        aka="algorithm.norm_adv_by_std_in_grpo scale_rewards",
    )
    eps: float = option(1e-6, EPS_HELP, above=0)


@dataclass(kw_only=True, slots=True)
class GrpoPasskConfig:
    """GRPO for pass@k (arXiv 2503.19595): only the best rollout of a group has an advantage."""

    normalize_std: bool = option(True, "divide by the group's standard deviation")
    eps: float = option(1e-6, EPS_HELP, above=0)


@dataclass(kw_only=True, slots=True)
class GdpoConfig:
    """GDPO (arXiv 2601.05242): each reward is normalised within the group, then weighed and added."""

    weights: dict[str, float] | None = option(
        None,
        "weight of each reward (NAME) or part of a reward (NAME/PART) after it is normalised, others are left out; "
        "null: rewards.NAME.weight of every reward",
    )
    batch_std: bool = option(True, "divide by the standard deviation over all rollouts of the step; false: as summed")
    eps: float = option(1e-6, EPS_HELP, above=0)


@dataclass(kw_only=True, slots=True)
class MaxRlConfig:
    """MaxRL (arXiv 2602.02710): reward minus the group's mean, divided by that mean."""

    eps: float = option(1e-6, "added to the mean, against division by 0", above=0)


@dataclass(kw_only=True, slots=True)
class ReinforcePpConfig:
    """REINFORCE++ (arXiv 2501.03262). Its KL term is `train.kl_estimator=k1-reward`."""

    gamma: float = option(1.0, "discount of a reward per sampled token before it", minimum=0, maximum=1)
    skip_inserted: bool = option(
        True, "discount over sampled tokens only; false: as released, rewards do not pass a tool result"
    )


@dataclass(kw_only=True, slots=True)
class GigpoConfig:
    """GiGPO (arXiv 2505.10978): the episode's advantage plus omega times the turn's."""

    omega: float = option(1.0, "weight of the turn's advantage; the rollout's has 1", minimum=0)
    gamma: float = option(0.95, "discount of a reward per turn before it", minimum=0, maximum=1)
    normalize_std: bool = option(True, "divide by the standard deviation of rollouts and of turns")
    eps: float = option(1e-6, EPS_HELP, above=0)


@dataclass(kw_only=True, slots=True)
class TreeGrpoConfig:
    """Tree-GRPO (arXiv 2509.21240): GRPO within each tree plus GRPO over all trees of a task."""

    intra: bool = option(True, "compare a rollout with the others of its tree")
    inter: bool = option(True, "compare a rollout with all rollouts of its task")
    eps: float = option(1e-6, EPS_HELP, above=0)

    def __post_init__(self) -> None:
        if not (self.intra or self.inter):
            raise ValueError("intra and inter are both false: no rollout would have an advantage; set one of them")


@dataclass(kw_only=True, slots=True)
class GaeConfig:
    """Generalized advantage estimation (arXiv 1506.02438) with a critic."""

    gamma: float = option(
        1.0, "discount of a reward per time step before it", minimum=0, maximum=1, aka="algorithm.gamma"
    )
    lam: float = option(
        1.0,
        "lambda of GAE; 1: the return only; 0: the critic's value of the next token",
        minimum=0,
        maximum=1,
        aka="algorithm.lam gae_lambda lambd",
    )
    skip_inserted: bool = option(True, "only sampled tokens are time steps; false: all tokens, as released")
    whiten: bool = option(
        True, "scale advantages to mean 0 and standard deviation 1 over all sampled tokens of the step"
    )
    critic_lr: float = option(
        1e-5, "learning rate of the critic", minimum=0, aka="critic.optim.lr critic_learning_rate"
    )
    critic_warmup_steps: int = option(0, "first training steps, in which only the critic is updated", minimum=0)
    value_clip: float = option(0.5, "largest change of a value from before the update, in the critic's loss", above=0)
