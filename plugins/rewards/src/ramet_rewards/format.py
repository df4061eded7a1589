"""`format`: did the policy keep to the tags, and end with an answer?

Only what the policy sampled is looked at, so no tool result can spoil or mend the format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ramet import ConfigError, Reward, Rollout, Score, StopReason, per_rollout
from ramet_rewards.config import FormatConfig


def make(config: FormatConfig) -> Reward:
    absent = sorted(set(config.required) - set(config.paired))
    if absent:
        raise ConfigError(
            f"rewards.format.params.required names {', '.join(absent)}; allowed: tags of `paired`, that is "
            f"{', '.join(config.paired)}"
        )
    tags = _pattern([*config.paired, *config.forbidden])

    def score(rollout: Rollout) -> Score:
        ended = rollout.stop is StopReason.ANSWER
        cut = rollout.stop is StopReason.LENGTH
        value = config.good if ended and _well_formed(rollout.sampled, tags, config) else config.bad
        return Score(value=value, masked=config.leave_out_truncated and cut)

    return per_rollout(score)


def _pattern(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"<(/?)({'|'.join(map(re.escape, names))})>")


def _well_formed(text: str, tags: re.Pattern[str], config: FormatConfig) -> bool:
    """Every tag is closed before the one around it, none is within one of its own name, and required ones are there."""
    stack: list[str] = []
    seen: set[str] = set()
    for slash, name in tags.findall(text):
        if name in config.forbidden:
            return False
        if slash:
            if not stack or stack.pop() != name:
                return False
            seen.add(name)
        elif name in stack:
            return False
        else:
            stack.append(name)
    return not stack and seen.issuperset(config.required)
