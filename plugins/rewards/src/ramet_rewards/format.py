"""`format`: did the policy keep to the tags, and end with an answer?

Only what the policy sampled is looked at, so no tool result can spoil or repair the format.
"""

from __future__ import annotations

import re

from ramet import Reward, Rollout, Score, StopReason, per_rollout
from ramet_rewards.config import FormatConfig, TagRules


class Format:
    """The rules that `format`, `deep_research` and `format_correct` share."""

    def __init__(self, rules: TagRules) -> None:
        self.rules = rules
        names = "|".join(map(re.escape, [*rules.paired, *rules.forbidden]))
        self._tags = re.compile(rf"<(/?)({names})>")

    def kept(self, rollout: Rollout) -> bool:
        return rollout.stop is StopReason.ANSWER and self.well_formed(rollout.sampled)

    def well_formed(self, text: str) -> bool:
        """Whether tags close before those around them, none is within its own kind, and required ones are there."""
        stack: list[str] = []
        seen: set[str] = set()
        for slash, name in self._tags.findall(text):
            if name in self.rules.forbidden:
                return False
            if slash:
                if not stack or stack.pop() != name:
                    return False
                seen.add(name)
            elif name in stack:
                return False
            else:
                stack.append(name)
        return not stack and seen.issuperset(self.rules.required)


def make(config: FormatConfig) -> Reward:
    rules = Format(config)

    def score(rollout: Rollout) -> Score:
        cut = rollout.stop is StopReason.LENGTH
        value = config.good if rules.kept(rollout) else config.bad
        return Score(value=value, masked=config.leave_out_truncated and cut)

    return per_rollout(score)
