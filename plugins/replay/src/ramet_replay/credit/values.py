"""The value of a point with its interval, and what a turn was worth: the difference of two values.

The value of a point is the mean reward of its continuations. Where all rewards of a measurement are of two kinds (right
and wrong), its 95 % interval is Wilson's. Otherwise it is Student's, or Wilson's over the range of all rewards if the
rewards of a point are equal: a few equal rewards say little about rare ones. The interval of a difference is made of
the limits of both values, as in Newcombe (1998, method 10); Zou and Donner (2008) show that other intervals can be
combined so too. A point is in two differences, once with each sign, so the numbers of neighbouring turns depend on each
other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from ramet.evaluate.statistics import CONFIDENCE, over_tasks

Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A number with its interval; `low` and `high` are None where one reward is all that was ever seen."""

    mean: float
    low: float | None
    high: float | None


def value_of(rewards: Sequence[float], scale: Sequence[float]) -> Value | None:
    """Return the mean of a point's rewards; None without any. `scale`: all rewards of the measurement."""
    if not rewards:
        return None
    kinds, mean = sorted(set(scale)), fmean(rewards)
    if len(kinds) > 2 and len(set(rewards)) > 1:
        half = over_tasks(rewards).half_width
        assert half is not None  # there are at least two rewards
        return Value(mean=mean, low=mean - half, high=mean + half)
    if len(kinds) < 2:
        return Value(mean=mean, low=None, high=None)
    low, high = wilson((mean - kinds[0]) / (kinds[-1] - kinds[0]), len(rewards))
    spread = kinds[-1] - kinds[0]
    return Value(mean=mean, low=kinds[0] + low * spread, high=kinds[0] + high * spread)


def known(reward: float) -> Value:
    """Return the value of an end, which is what the rollout got."""
    return Value(mean=reward, low=reward, high=reward)


def difference(before: Value, after: Value) -> Value:
    """Return `after` - `before`."""
    mean = after.mean - before.mean
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return Value(mean=mean, low=None, high=None)
    return Value(
        mean=mean,
        low=mean - math.hypot(after.mean - after.low, before.high - before.mean),
        high=mean + math.hypot(after.high - after.mean, before.mean - before.low),
    )


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return the limits of Wilson's score interval for a share of `n` trials."""
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
