"""`gsm8k`: is the number after `####`, or the last number, the gold answer's? (Cobbe et al., arXiv 2110.14168)

The gold answer may be only the number or the complete published solution, which ends in `#### NUMBER`. Numbers are
compared by value: `$1,234.00` is 1234. Only the policy's own text is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fractions import Fraction

from ramet import ConfigError, Rollout, Score, Task
from ramet_rewards.boxed import final
from ramet_rewards.config import Gsm8kMethod, Gsm8kRewardConfig
from ramet_rewards.equality import number

_MARKED = re.compile(r"####((?:-|\\?\$)*[\d,.]*\d)")  # without spaces: runs of them would be tried in every way
_SPACE = re.compile(r"(?<=[#$-])\s+(?=[\\$\d.-])")
_NUMBER = re.compile(r"(?:(?<![\w)])-)?\\?\$?(?:\d(?:[\d,]*\d)?(?:\.\d+)?|\.\d+)")


LAST_CHARS = 20_000  # of a text; earlier ones are not read


class Gsm8k:
    per_rollout = True

    def __init__(self, config: Gsm8kRewardConfig) -> None:
        self.config = config

    def check_task(self, task: Task) -> str | None:
        try:
            for gold in task.answer:
                gold_number(gold)
        except ConfigError as error:
            return str(error)
        return None

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        golds = {gold_number(gold) for gold in group[0].task.answer}
        return [self._score(golds, rollout) for rollout in group]

    def _score(self, golds: Collection[Fraction], rollout: Rollout) -> Score:
        stated = _stated(rollout, self.config.method)
        if stated is None:
            where = "after ####" if self.config.method is Gsm8kMethod.STRICT else "in the answer"
            return Score(value=0.0, reason=f"there is no number {where}")
        value = 1.0 if stated in golds else self.config.format_score
        is_gold = "is" if stated in golds else "is not"
        return Score(value=value, reason=f"{stated} {is_gold} the gold answer {' | '.join(map(str, sorted(golds)))}")


def gold_number(gold: str) -> Fraction:
    """Raise `ConfigError` for a gold answer that is not a number."""
    value = number(final(gold.rpartition("####")[2]))
    if value is None:
        raise ConfigError(f"the gold answer {gold[-60:]!r} is not a number, and does not end in #### and one")
    return value


def _stated(rollout: Rollout, method: Gsm8kMethod) -> Fraction | None:
    if method is Gsm8kMethod.STRICT:
        numbers = _MARKED.findall(_SPACE.sub("", rollout.reply[-LAST_CHARS:].replace("\N{MINUS SIGN}", "-")))
    else:
        text = rollout.reply if rollout.answer is None else final(rollout.answer)
        numbers = _NUMBER.findall(text[-LAST_CHARS:].replace("\N{MINUS SIGN}", "-"))
    return number(re.sub(r"[\s\\$]", "", numbers[-1])) if numbers else None
