"""The rollouts that an estimate of time counts on: their lengths, forks and tool calls, drawn by the run's seed.

They are not known before a run. A response has two thirds of `rollout.max_response_tokens` in the mean, or
`--response-tokens`; lengths are log-normal, and those over the limit are cut. Prompts are as long as they may be. Where
a branch policy forks, half of a group begins at the prompt and the others at a uniformly drawn token of one of those. A
rollout makes as many tool calls as it may, evenly over its turns.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramet.config.schema import Config
from ramet.policy.batching.trie import Trie

SHARE = 2 / 3  # of rollout.max_response_tokens that a response has in the mean
SPREAD = 0.5  # of the logarithm of a length
RESULT = 1 / 4  # of tools.NAME.max_result_tokens that a result has
MOST_RESULTS = 1 / 2  # of a response
TOOL_S = 1.0  # seconds of a call where --tool-s says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Numbers that the user knows better than the plan."""

    response_tokens: int | None = None  # in the mean
    tool_s: float = TOOL_S  # of one call, in the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Rollouts of a step, N = groups * group_size, a group's after each other, each fork after its root."""

    prompt: int
    lengths: NDArray[np.int64]  # [N] tokens after the prompt
    forks: NDArray[np.int64]  # [N] of those the ones that a parent sampled; 0 for roots
    parents: NDArray[np.int64]  # [N] index of the root that it forks off; -1 for roots
    group_size: int
    calls: int  # tool calls of a rollout
    result: int  # tokens of a tool's result

    @property
    def inserted(self) -> NDArray[np.int64]:
        """`[N]` tokens of results in the part that is a rollout's own."""
        own = self.lengths - self.forks
        results: NDArray[np.float64] = np.minimum(self.calls * self.result / self.lengths, MOST_RESULTS) * own
        return results.astype(np.int64)

    @property
    def sampled(self) -> NDArray[np.int64]:
        return self.lengths - self.forks - self.inserted

    def tries(self, rows: Iterable[int]) -> list[Trie]:
        """The tries of the fed tokens of these rollouts, one for each group; `order` has indices of rollouts."""
        by_group: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            by_group[row // self.group_size].append(row)
        return [self._trie(members) for members in by_group.values()]

    def _trie(self, members: Sequence[int]) -> Trie:
        """The trie in the order of its walk: each root, then its forks, the latest first."""
        first = members[0] // self.group_size * self.group_size
        group = range(first, first + self.group_size)
        root = {i: i if self.parents[i] < 0 else int(self.parents[i]) for i in group}
        walk = sorted(group, key=lambda i: (root[i], self.parents[i] >= 0, -self.forks[i]))
        chosen, order, shared, common = set(members), [], [], 0
        for i in walk:
            common = min(common, int(self.prompt + self.forks[i]))
            if i in chosen:
                order.append(i)
                shared.append(common)
                common = sys.maxsize
        lengths = tuple(int(self.prompt + self.lengths[i]) - 1 for i in order)
        return Trie(order=tuple(order), lengths=lengths, shared=tuple(shared))


def draw(config: Config, expected: Expected) -> Drawn:
    """Draw the rollouts of one step."""
    rollout = config.rollout
    most, groups, size = rollout.max_response_tokens, config.train.tasks_per_step, rollout.group_size
    mean = expected.response_tokens or SHARE * most
    random = np.random.default_rng(config.run.seed)
    lengths = np.minimum(mean * np.exp(SPREAD * random.standard_normal((groups, size)) - SPREAD**2 / 2), most)
    roots = size if config.branch_policy.name == "none" else max(1, size // 2)
    parents = np.full((groups, size), -1)
    at = np.zeros((groups, size))
    if roots < size:
        chosen = random.integers(0, roots, (groups, size - roots))
        share = random.random((groups, size - roots))
        at[:, roots:] = share * np.take_along_axis(lengths, chosen, axis=1)
        lengths[:, roots:] = at[:, roots:] + (1 - share) * lengths[:, roots:]
        parents[:, roots:] = chosen + np.arange(groups)[:, None] * size
    whole, forks = np.maximum(1, lengths.astype(np.int64)), at.astype(np.int64)
    calls = min(rollout.max_tool_calls, rollout.max_turns - 1) if config.tools else 0
    result = max((RESULT * tool.max_result_tokens for tool in config.tools.values()), default=0.0)
    return Drawn(
        prompt=config.data.max_prompt_tokens,
        lengths=np.maximum(whole, forks + 1).ravel(),
        forks=forks.ravel(),
        parents=parents.ravel(),
        group_size=size,
        calls=calls,
        result=max(1, int(min(result, MOST_RESULTS * mean / max(1, calls)))),
    )
