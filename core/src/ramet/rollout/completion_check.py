"""What an engine's reply must be like before it becomes part of a rollout, whatever engine it is.

An engine that lost its weights, or computes nonsense, still replies. Its tokens would train the policy on numbers that
belong to no policy, so they are refused here, where every reply passes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from ramet.engines.protocol import Completion


@dataclass(frozen=True, slots=True)
class Versions:
    """Which weights may have sampled a rollout: from those that the engine had been given when it started, to the
    newest that it has been given by now.
    """

    oldest: int
    newest: Callable[[], int]

    def problem(self, found: array[int]) -> str | None:
        newest = self.newest()
        if not found or (min(found) >= self.oldest and max(found) <= newest):
            return None
        return (
            f"its tokens are of policy version {_span(min(found), max(found))}; expected {_span(self.oldest, newest)}"
        )


def reply_problem(reply: Completion, versions: Versions | None) -> str | None:
    """Why this reply cannot be used; `versions` None allows any."""
    count = len(reply.token_ids)
    if len(reply.policy_versions) != count:
        return f"{len(reply.policy_versions)} policy versions for {count} tokens"
    if not math.isfinite(sum(reply.logprobs)):  # a sum of float32 in double precision cannot overflow
        return f"{sum(not math.isfinite(x) for x in reply.logprobs)} of its {count} log-probabilities are not finite"
    if not math.isfinite(sum(reply.entropies)):
        return f"{sum(not math.isfinite(x) for x in reply.entropies)} of its {count} entropies are not finite"
    return None if versions is None else versions.problem(reply.policy_versions)


def version_runs(versions: array[int]) -> Iterator[tuple[int, int, int]]:
    """`(version, start, end)` of each run of tokens that one version sampled."""
    if versions and versions.count(versions[0]) == len(versions):  # nearly always; this counts in C
        yield versions[0], 0, len(versions)
        return
    start = 0
    for version, run in groupby(versions):
        end = start + sum(1 for _ in run)
        yield version, start, end
        start = end


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
