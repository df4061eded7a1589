"""Metrics of rollouts. Executed work and logical work are counted apart: a shared prefix is executed once.

Logical counts sum over all rollouts of a group, as the training pass sees them; executed ones count each segment and
each tool call once.

A process that keeps its groups counts them itself (`counted`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ramet.rollout.branching.metrics import BranchMetrics, first_entropies
from ramet.types import Group, Origin, Rollout, Segment, StopReason


class RolloutMetrics:
    """Collects groups; `take` gives the metrics since the last call."""

    def __init__(self, first_tokens: int) -> None:
        self.first_tokens = first_tokens
        self._clear()

    def _clear(self) -> None:
        self.seconds = 0.0
        self._groups = 0
        self._sums: Counter[str] = Counter()
        self._stops: Counter[StopReason] = Counter()
        self._longest = 0
        self._entropy, self._n_entropies = 0.0, 0
        self._n = 0
        self._step: dict[str, list[float]] = {}  # what the rollout step measured: sums of rollouts, by metric
        self._step_turns: Counter[str] = Counter()
        self._first: dict[str, list[float]] = {"first_turn": [], "after_tool": []}
        self._branching = BranchMetrics()

    def add(self, group: Group) -> None:
        if isinstance(group, CountedGroup):
            self._add_counts(group.counts)
            return
        self._groups += 1
        self._sums["unused"] += group.n_unused
        lengths = [self._add_rollout(rollout) for rollout in group.rollouts]
        sampled = [s for s in _unique(group.rollouts) if s.origin is Origin.SAMPLED]
        self._sums["executed_sampled"] += sum([len(segment.token_ids) for segment in sampled])
        for segment in sampled:
            if segment.entropies is not None:
                self._entropy += sum(segment.entropies)
                self._n_entropies += len(segment.entropies)
        begun = first_entropies(group.rollouts, self.first_tokens)
        for turn in begun:
            if turn.values:
                where = "after_tool" if turn.turn else "first_turn"
                self._first[where].append(sum(turn.values) / len(turn.values))
        self._branching.add(group, lengths, begun)

    def _add_counts(self, other: RolloutMetrics) -> None:
        """Add what `other` has collected; its seconds are not added."""
        self._groups += other._groups
        self._sums.update(other._sums)
        self._stops.update(other._stops)
        self._longest = max(self._longest, other._longest)
        self._entropy += other._entropy
        self._n_entropies += other._n_entropies
        self._n += other._n
        self._step_turns.update(other._step_turns)
        for name, values in other._step.items():
            self._step.setdefault(name, []).extend(values)
        for where, values in other._first.items():
            self._first[where].extend(values)
        self._branching.add_all(other._branching)

    def _add_rollout(self, rollout: Rollout) -> int:
        """Add a rollout; return its response's length in tokens."""
        self._n += 1
        self._stops[rollout.stop] += 1
        sampled = [segment for segment in rollout.segments if segment.origin is Origin.SAMPLED]
        first_turn, length = rollout.first_turn, rollout.n_response_tokens
        self._longest = max(self._longest, length)
        sums, stats = self._sums, rollout.stats  # added one by one: `Counter.update` costs several times as much
        sums["mixed"] += len({segment.policy_version for segment in sampled}) > 1
        sums["forks"] += rollout.parent is not None
        sums["from_prefix"] += rollout.prefix is not None
        sums["filled"] += int(stats.get("filled", 0))
        sums["turns"] += 1 + max([segment.turn for segment in rollout.segments], default=0)
        sums["response_tokens"] += length
        sums["logical_sampled"] += sum([len(segment.token_ids) for segment in sampled])
        sums["logical_calls"] += len(rollout.tool_calls)
        sums["executed_calls"] += sum([call.turn >= first_turn for call in rollout.tool_calls])
        sums["drifted"] += int(stats.get("drifted_segments", 0))
        sums["rollout_ms"] += int(1000 * stats.get("seconds", 0.0))
        for key, value in stats.items():
            if not key.startswith("step"):
                continue
            area, _, name = key.partition("/")
            if area == "step":
                self._step.setdefault(name, []).append(value)
            elif area == "step_turns":
                self._step_turns[name] += int(value)
        return length

    def take(self) -> dict[str, float]:
        """Shares are of rollouts, means per rollout. Empty without rollouts."""
        metrics = self._summary() if self._n else {}
        self._clear()
        return metrics

    def _summary(self) -> dict[str, float]:
        sums, n = self._sums, self._n
        metrics = {
            "rollout/seconds": self.seconds,
            "rollout/rollout_seconds_mean": sums["rollout_ms"] / 1000 / n,
            "rollout/rollouts": float(n),
            "rollout/mixed_version_share": sums["mixed"] / n,
            "rollout/turns_mean": sums["turns"] / n,
            "rollout/response_tokens_mean": sums["response_tokens"] / n,
            "rollout/response_tokens_max": float(self._longest),
            "rollout/sampled_tokens_mean": sums["logical_sampled"] / n,
            "rollout/tool_calls_mean": sums["logical_calls"] / n,
            "rollout/logical_tool_calls": float(sums["logical_calls"]),
            "rollout/executed_tool_calls": float(sums["executed_calls"]),
            "rollout/logical_sampled_tokens": float(sums["logical_sampled"]),
            "rollout/executed_sampled_tokens": float(sums["executed_sampled"]),
            "rollout/forks_per_group": sums["forks"] / self._groups,
            "rollout/prefix_starts_per_group": sums["from_prefix"] / self._groups,
            "rollout/filled_per_group": sums["filled"] / self._groups,
            "rollout/unused_per_group": sums["unused"] / self._groups,
            "rollout/retokenization_drift": float(sums["drifted"]),
        }
        metrics |= {f"rollout/stop/{reason}": self._stops[reason] / n for reason in StopReason}
        metrics |= {f"step/{name}": math.fsum(values) / self._step_turns[name] for name, values in self._step.items()}
        if self._n_entropies:
            metrics["rollout/entropy"] = self._entropy / self._n_entropies
        for where, values in self._first.items():
            if values:
                metrics[f"rollout/entropy_{where}"] = sum(values) / len(values)
        return {**metrics, **self._branching.summary()}


def _unique(rollouts: Iterable[Rollout]) -> Iterable[Segment]:
    """Each segment object once, however many rollouts share it."""
    return {id(segment): segment for rollout in rollouts for segment in rollout.segments}.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedGroup(Group):
    """A group without tokens and texts, which another process has. `counts`: of the complete group."""

    counts: RolloutMetrics


def counted(group: Group, first_tokens: int) -> CountedGroup:
    """Return a group without what grows with its tokens: segments, and all that rollouts have by turn. Of the calls of
    tools the first stays, empty.
    """
    counts = RolloutMetrics(first_tokens)
    counts.add(group)
    rollouts = tuple(
        replace(
            rollout,
            segments=(),
            thread_starts=(),
            n_shared=0,
            answer=None,
            tool_calls=tuple(replace(call, arguments={}, text="", metadata={}) for call in rollout.tool_calls[:1]),
            infos=(),
            turn_rewards=(),
            token_rewards={},
            state_keys=(),
        )
        for rollout in group.rollouts
    )
    return CountedGroup(task=group.task, rollouts=rollouts, n_unused=group.n_unused, scores=group.scores, counts=counts)
