"""`repetition`: the share of n-grams that a policy repeats, as a reward of 0 or less.

    -(share - free_share) / (1 - free_share)     share = 1 - different n-grams / all n-grams

N-grams are of sampled tokens within one turn, so neither tool results nor the seams between turns count, and no
language is split into words. As in "Demystifying Long Chain-of-Thought Reasoning" (Yeo et al., arXiv 2502.03373,
appendix), with the share of a rollout instead of a cost by token.
"""

from __future__ import annotations

from itertools import groupby

from ramet import Reward, Rollout, per_rollout
from ramet_rewards.config import RepetitionConfig


def make(config: RepetitionConfig) -> Reward:
    def score(rollout: Rollout) -> float:
        share = repeated_share(rollout, config.ngram)
        return min(-(share - config.free_share) / (1 - config.free_share), 0.0) if share else 0.0

    return per_rollout(score)


def repeated_share(rollout: Rollout, n: int) -> float:
    """Return the share, in [0, 1); 0 where no turn has `n` tokens."""
    sampled = [segment for segment in rollout.segments if segment.is_sampled]
    seen: set[bytes] = set()
    total = 0
    for _, turn in groupby(sampled, key=lambda segment: segment.turn):
        raw = b"".join(segment.token_ids.tobytes() for segment in turn)
        grams = len(raw) // 4 - n + 1  # token ids are int32
        seen.update(raw[4 * i : 4 * (i + n)] for i in range(grams))
        total += max(grams, 0)
    return 1 - len(seen) / total if total else 0.0
