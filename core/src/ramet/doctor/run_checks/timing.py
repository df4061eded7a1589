"""Time that is lost: in tools, in judges, in waiting for the longest rollout."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

from ramet.doctor import thresholds as t
from ramet.doctor.reading import Seen, by_step, finding, mean, percent, unmasked
from ramet.types import Finding, Severity, StoredRun


def lost_time(run: StoredRun) -> Iterator[Finding]:
    """The largest loss of time, without the smaller ones."""
    step_s = mean(run.values("time/step_s")) or 0.0
    if step_s < t.STEP_S:
        return
    losses = [*_in_judges(run, step_s), *_in_tools(run, step_s), *_for_stragglers(run, step_s)]
    if losses:
        yield losses[0]


def _in_judges(run: StoredRun, step_s: float) -> Iterator[Finding]:
    judged = (mean(run.values("time/rollout_s")) or 0.0) - (mean(run.values("rollout/seconds")) or 0.0)
    if judged / step_s >= t.JUDGE_TIME:
        yield finding(
            "slow-judge",
            Severity.WARNING,
            "rewards take the time",
            f"of {step_s:.1f} s a step {judged:.1f} s pass after the last rollout has ended, in the rewards "
            f"{', '.join(run.option('rewards', {}))}",
            "the reward's code or judge: its concurrency (rewards.NAME.params), a faster or nearer judge",
        )


def _in_tools(run: StoredRun, step_s: float) -> Iterator[Finding]:
    seen = unmasked(run)
    total = sum(_stat(one, "seconds") for one in seen)
    ran, waited = sum(_stat(one, "tool_s") for one in seen), sum(_stat(one, "tool_wait_s") for one in seen)
    if not total or (ran + waited) / total < t.TOOL_TIME:
        return
    by_tool: Counter[str] = Counter()
    for one in seen:
        for call in one.rollout.tool_calls:
            by_tool[call.name] += int(1000 * (call.run_s + call.wait_s))
    name = by_tool.most_common(1)[0][0]
    more = f"tools.{name}.concurrency={run.option(f'tools.{name}.concurrency')} (more at once)"
    yield finding(
        "slow-tools",
        Severity.WARNING,
        f"the tool {name} takes the time",
        f"{percent((ran + waited) / total)} of the rollouts' time is in tools: {ran:.0f} s in calls, {waited:.0f} s in "
        f"queues before them; a step takes {step_s:.1f} s",
        more if waited > ran else f"the tool itself, tools.{name}.timeout_s; {more}",
        sorted(seen, key=lambda one: -_stat(one, "tool_s") - _stat(one, "tool_wait_s")),
    )


def _for_stragglers(run: StoredRun, step_s: float) -> Iterator[Finding]:
    longest = {step: max(ones, key=lambda one: _stat(one, "seconds")) for step, ones in by_step(unmasked(run))}
    median = statistics.median(_stat(one, "seconds") for one in unmasked(run)) if longest else 0.0
    most = mean([_stat(one, "seconds") for one in longest.values()]) or 0.0
    if not median or most < t.STRAGGLER_TIMES * median or most / step_s < t.STRAGGLER_SHARE:
        return
    yield finding(
        "stragglers",
        Severity.WARNING,
        "a step waits for its longest rollouts",
        f"the longest rollout of a step takes {most:.1f} s, the median {median:.1f} s, the step {step_s:.1f} s",
        "rollout.max_response_tokens, max_turns (lower), tools.NAME.timeout_s (lower), train.staleness (1)",
        longest.values(),
    )


def _stat(one: Seen, name: str) -> float:
    return float(one.rollout.stats.get(name, 0.0))
