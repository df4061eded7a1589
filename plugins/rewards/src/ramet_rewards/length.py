"""`length`: the longer a rollout, the lower, in a straight line from 0 at `free_tokens` to -1 at `max_tokens`.

`overlong` touches only rollouts near the limit; this one makes every token cost the same.
"""

from __future__ import annotations

from ramet import Reward, Rollout, per_rollout
from ramet_rewards.config import LengthConfig


def make(config: LengthConfig) -> Reward:
    def score(rollout: Rollout) -> float:
        length = rollout.n_sampled_tokens if config.sampled_only else rollout.n_response_tokens
        over = max(length - config.free_tokens, 0)
        return -min(over / (config.max_tokens - config.free_tokens), 1.0)

    return per_rollout(score)
