"""On-policy distillation: the student samples, and the teacher says of each token how likely it would be.

    A_t = log p_teacher(y_t | x, y_<t) - log pi_old(y_t | x, y_<t)

Its policy gradient is the gradient of the reverse KL by token, sum_t KL(pi(. | y_<t) || p_teacher(. | y_<t)), on the
student's own texts (Agarwal et al., arXiv 2306.13649, with the reverse KL and only on-policy data; Gu et al., arXiv
2306.08543). A token's advantage is its own difference: nothing of later tokens is added, as without a discount of the
future.
"""

from __future__ import annotations

from typing import Literal

from ramet import AdvantageInputs, AdvantageOutput, Need, group_statistics, rollout_scores
from ramet_distill.config import DistillConfig
from ramet_distill.gaps import likelier, mean_of_tokens

EPS = 1e-6  # added to a group's standard deviation, as advantage=grpo does


class Distill:
    """Advantage estimator `distill`."""

    needs = frozenset({Need.RESCORED, Need.OLD_LOGPROBS})
    reads_threads = True
    scope: Literal["batch", "group"] = "group"

    def __init__(self, config: DistillConfig) -> None:
        self.config = config
        self.min_group = 2 if config.reward_weight else 1  # the teacher needs no other rollout

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        advantages = likelier(batch, "distill", self.config.max_gap)
        metrics = {"advantage/teacher_kl": -mean_of_tokens(advantages, batch.mask)}
        if self.config.reward_weight:
            scores = rollout_scores(batch)
            relative = group_statistics(scores, batch.group_ids).relative(scores, normalize_std=True, eps=EPS)
            advantages = advantages + self.config.reward_weight * relative[:, None].float() * batch.mask
        return AdvantageOutput(advantages=advantages, metrics=metrics)
