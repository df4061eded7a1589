"""A run in a few sentences: steps, reward with its interval, validation, tools, what was masked, scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ramet.report.group_counts import ALL, ROOTS, VALID, GroupCounts
from ramet.tracking.columns import small
from ramet.tracking.jsonl import Curve

ENDS = 5  # steps at each end of a curve, of which means are compared
Line = tuple[str, str]  # what it is about, the sentence


def in_short(
    curves: Mapping[str, Curve], config: DictConfig, counts: GroupCounts, evaluation: Mapping[str, Any] | None
) -> list[Line]:
    """The lines that hold for this run; a run without rollouts has none about them."""
    lines = [*_training(curves, config, counts), *_sft(curves)]
    if evaluation is not None:
        lines += [(one["name"], _score(one, evaluation["k"])) for one in evaluation["benchmarks"]]
    return lines


def _training(curves: Mapping[str, Curve], config: DictConfig, counts: GroupCounts) -> Iterator[Line]:
    metric = next((name for name in (ROOTS, ALL) if name in curves), None)
    if metric is not None:
        done, planned = int(curves[metric][0][-1]), OmegaConf.select(config, "train.steps")
        yield "steps", f"{done} of {planned}" if planned else str(done)
        yield "reward", _change(metric, curves[metric], counts)
    if VALID in curves:
        yield "validation", _validation(curves[VALID], counts)
    if metric is not None:
        yield "tools", _tools(curves)
        yield "masked", _masked(curves, counts)


def _change(metric: str, curve: Curve, counts: GroupCounts) -> str:
    """Compare the means of the first and of the last steps."""
    steps, values = [int(step) for step in curve[0]], curve[1]
    n = min(ENDS, len(steps) // 2)
    if n == 0:
        return f"{small(values[0])}{_half(counts, metric, steps)} in step {steps[0]}, the only one"
    ends = [(values[:n], steps[:n]), (values[-n:], steps[-n:])]
    before, after = (f"{small(fmean(part))}{_half(counts, metric, of)} in {_range(of)}" for part, of in ends)
    halves = [half for _, of in ends if (half := counts.half_width(metric, of)) is not None]
    difference = abs(fmean(values[-n:]) - fmean(values[:n]))
    is_noise = len(halves) == 2 and difference <= math.hypot(*halves)
    noise = "; the difference is within the noise" if is_noise else ""
    return f"{before}, {after}{noise}"


def _half(counts: GroupCounts, metric: str, steps: Sequence[int]) -> str:
    half = counts.half_width(metric, steps)
    return "" if half is None else f" ± {small(half)}"


def _range(steps: Sequence[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _validation(curve: Curve, counts: GroupCounts) -> str:
    steps, values = [int(step) for step in curve[0]], curve[1]
    shown = [
        f"{small(value)}{_half(counts, VALID, [step])} after step {step}"
        for step, value in zip(steps, values, strict=True)
    ]
    if len(shown) == 1:
        return shown[0]
    finite = [i for i, value in enumerate(values) if math.isfinite(value)]
    highest = f"; highest {shown[max(finite, key=values.__getitem__)]}" if finite else ""
    return f"{shown[0]}, {shown[-1]}{highest}"


def _tools(curves: Mapping[str, Curve]) -> str:
    """How many rollouts called a tool, and each tool's calls and failures over all steps."""
    use = curves.get("rollout/tool_use")
    shares = f"called by {use[1][0]:.0%} of the rollouts in the first step, {use[1][-1]:.0%} in the last" if use else ""
    names = [name.split("/")[1] for name in curves if name.startswith("tool/") and name.endswith("/calls")]
    each = [text for name in sorted(names) if (text := _calls(name, curves))]
    return "; ".join([*([shares] if shares else []), *each]) or "none called"


def _calls(tool: str, curves: Mapping[str, Curve]) -> str | None:
    calls, failed, lost = (_total(curves.get(f"tool/{tool}/{what}")) for what in ("calls", "errors", "infra"))
    by_infrastructure = f", {lost:,} by infrastructure" if lost else ""
    return f"{tool}: {calls:,} calls, {failed:,} failed{by_infrastructure}" if calls else None


def _masked(curves: Mapping[str, Curve], counts: GroupCounts) -> str:
    shares, rollouts = (
        dict(zip(*curves.get(f"rollout/{name}", ((), ())), strict=True)) for name in ("masked_share", "rollouts")
    )
    masked = [share * rollouts.get(step, 0.0) for step, share in shares.items()]
    where = ", ".join(f"{name} {n:,}" for name, n in counts.masked.most_common(4))
    by = f"; recorded reasons: {where}" if where else ""
    return f"{_total(((), masked)):,} of {_total(((), [*rollouts.values()])):,} rollouts{by}"


def _total(curve: tuple[Sequence[float], Sequence[float]] | None) -> int:
    """Sum over all steps; values that are not finite are left out."""
    return 0 if curve is None else round(sum(value for value in curve[1] if math.isfinite(value)))


def _sft(curves: Mapping[str, Curve]) -> Iterator[Line]:
    for name, title in (("sft/loss", "SFT loss"), ("sft/valid_loss", "SFT validation loss")):
        if name in curves:
            steps, losses = curves[name]
            yield title, f"{small(losses[0])} at step {steps[0]:g}, {small(losses[-1])} at step {steps[-1]:g}"


def _score(benchmark: Mapping[str, Any], k: int) -> str:
    metric = benchmark["metrics"][0]
    mean, half = metric["avg"]
    value = "no score yet" if mean is None else small(mean) + (f" ± {small(half)}" if half else "")
    each = "1 rollout each" if k == 1 else f"{k} rollouts each"
    return f"{metric['name']} {value} over {benchmark['n_tasks']:,} tasks, {each}; scored {metric['judged']}"
