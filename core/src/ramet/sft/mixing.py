"""How the rows of several data sets are mixed, in LLaMA-Factory's words.

`concat`: all rows of all sets. `interleave_under`: rows of the sets in turn, until one has no more. `interleave_over`:
until every set has been used up; rows of smaller sets come again. `interleave_once`: every row once, in turn. With
`probs` the next set is drawn. Each pass over the data has another order, so the strategy decides how often each row is
in it, not where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
LEAST = 0.001  # share of a set
CONCAT, UNDER, ONCE = "concat", "interleave_under", "interleave_once"


def mixing_problem(mixing: Mapping[str, Any], sets: int) -> str | None:
    """Problems of `sft.mixing` for so many sets. Names and strategies are checked with the other keys."""
    probs = mixing.get("probs")
    if probs is None:
        return None
    if (mixing.get("strategy") or CONCAT) == CONCAT:
        return f"sft.mixing.probs={probs}: read only with an interleaving sft.mixing.strategy"
    if not isinstance(probs, list | tuple) or not all(_is_share(share) for share in probs):
        return f"sft.mixing.probs={probs}: must be a list of numbers over 0, one for each entry of sft.data"
    if len(probs) != sets:
        return f"sft.mixing.probs={probs}: {len(probs)} for {sets} entries of sft.data; give one for each"
    if min(probs) < LEAST * sum(probs):  # with it, rows of the others would come again for ages
        return f"sft.mixing.probs={probs}: each must be at least {LEAST:g} of their sum"
    return None


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def mixed(sets: Sequence[Sequence[T]], mixing: Mapping[str, Any], seed: int) -> list[T]:
    """The rows of the sets as they are trained on in a pass; the same for the same seed. Sets without rows are left
    out.
    """
    strategy, probs = mixing.get("strategy") or CONCAT, mixing.get("probs")
    if strategy == CONCAT:
        return list(chain.from_iterable(sets))
    shares = probs and [share for rows, share in zip(sets, probs, strict=True) if rows]
    sets = [rows for rows in sets if rows]
    used, random = [0] * len(sets), Random(seed)
    made: list[T] = []
    is_over = any if strategy == UNDER else all
    while sets and not is_over(count >= len(rows) for count, rows in zip(used, sets, strict=True)):
        for number in random.choices(range(len(sets)), shares) if shares else range(len(sets)):
            rows = sets[number]
            if strategy != ONCE or used[number] < len(rows):
                made.append(rows[used[number] % len(rows)])
                used[number] += 1
    return made
