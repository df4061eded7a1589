"""`qa_f1` and `qa_em`: token F1 with, and equality to, the nearest gold answer. How texts compare is in `text`."""

from __future__ import annotations

from ramet import Reward, Rollout, per_rollout
from ramet_rewards.boxed import final, words_of
from ramet_rewards.config import QaConfig, QaEmConfig
from ramet_rewards.text import best_f1, exact_match


def f1(config: QaConfig) -> Reward:
    def score(rollout: Rollout) -> float:
        if rollout.answer is None:
            return 0.0
        return best_f1(words_of(final(rollout.answer)), rollout.task.answer, config.normalisation)

    return per_rollout(score)


def em(config: QaEmConfig) -> Reward:
    def score(rollout: Rollout) -> float:
        if rollout.answer is None:
            return 0.0
        answer = words_of(final(rollout.answer))
        return exact_match(answer, rollout.task.answer, config.normalisation, within=config.within)

    return per_rollout(score)
