"""`overlong`: a soft punishment for length (DAPO, arXiv 2503.14476).

    0                                         up to max_tokens - buffer_tokens
    (max_tokens - buffer_tokens - L) / buffer_tokens       within the buffer
    -1                                        from max_tokens on

It is a separate reward, added to the others with its weight: a right answer's loss by its length stays visible.
"""

from __future__ import annotations

from ramet import Reward, Rollout, per_rollout
from ramet_rewards.config import OverlongConfig


def make(config: OverlongConfig) -> Reward:
    free = config.max_tokens - config.buffer_tokens

    def score(rollout: Rollout) -> float:
        length = rollout.n_sampled_tokens if config.sampled_only else rollout.n_response_tokens
        return max(min(free - length, 0) / config.buffer_tokens, -1.0)

    return per_rollout(score)
