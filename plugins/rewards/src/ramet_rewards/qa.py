"""`qa_f1` and `qa_em`: token F1 with, and equality to, the nearest gold answer. How texts compare is in `text`."""

from __future__ import annotations

from ramet import Reward, Rollout, Score, per_rollout
from ramet_rewards.boxed import final, words_of
from ramet_rewards.config import QaConfig, QaEmConfig
from ramet_rewards.text import best_f1, exact_match, quoted


def f1(config: QaConfig) -> Reward:
    def score(rollout: Rollout) -> Score:
        if rollout.answer is None:
            return Score(value=0.0, reason="there is no answer")
        answer, golds = words_of(final(rollout.answer)), rollout.task.answer
        value = best_f1(answer, golds, config.normalisation)
        reason = f"F1 of the answer {quoted(answer)} with the nearest gold answer of {quoted(*golds)}"
        return Score(value=value, reason=reason)

    return per_rollout(score)


def em(config: QaEmConfig) -> Reward:
    def score(rollout: Rollout) -> Score:
        if rollout.answer is None:
            return Score(value=0.0, reason="there is no answer")
        answer, golds = words_of(final(rollout.answer)), rollout.task.answer
        value = exact_match(answer, golds, config.normalisation, within=config.within)
        relation = (
            ("holds" if config.within else "equals") if value else ("lacks" if config.within else "does not equal")
        )
        return Score(value=value, reason=f"the answer {quoted(answer)} {relation} the gold answer {quoted(*golds)}")

    return per_rollout(score)
