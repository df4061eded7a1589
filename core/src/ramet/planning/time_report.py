"""An estimate of a step's seconds in words, and the settings that would gain most, each planned again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ramet.config.schema import Attention, Config, Dtype, Offload, OldLogprobs, SharePrefixes
from ramet.models.attention import KNOWS_BORDERS
from ramet.planning.drawn import Expected
from ramet.planning.memory_changes import Change, written
from ramet.planning.memory_report import ROOMY, again, allowed, fits
from ramet.planning.step_time import ROLLOUTS, UPDATE, StepTime, step_time
from ramet.planning.time_rollouts import CALLS, COMPUTED
from ramet.policy.check import check_policy_options, possible_replicas

LEARNED = "train.old_logprobs"  # alters learning
NOTES = {LEARNED: ", which alters learning", "tools": ", where the hosts have processors for them"}
WORTHWHILE = 0.02  # share of a step from which on a gain is named: other draws of lengths change as much
MUCH = 1.1  # of an update's time without exchanges, from which on these bound it
SHARE_STEP = 0.05  # of engine.params.gpu_memory_utilization


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    change: Change
    seconds: float  # of a step, less

    def __str__(self) -> str:
        note = NOTES.get(self.change.key) or NOTES.get(self.change.key.partition(".")[0], "")
        return f"{self.change} ({self.seconds:.0f} s less{note})"


def time_table(time: StepTime | str, expected: Expected) -> list[str]:
    """Lines: the phases of a step, what bounds it, what it counts on, and what would gain most."""
    if isinstance(time, str):
        return [time]
    machine = time.plan.inputs.machine
    lines = [f"estimated, seconds of a step on {machine.written or machine.gpu}; no run was measured (docs/plan.md)"]
    width = max(map(len, time.phases)) + 2
    for phase, seconds in time.phases.items():
        lines.append(f"  {phase:{width}}{seconds:7.1f}{_made_of(time, phase)}".rstrip())
    lines.append(f"  {'step':{width}}{time.seconds:7.1f}{'  rollouts run during the rest' if time.ahead else ''}")
    lines += [_bound(time), _counted(time, expected), *_compiled(time)]
    found = gains(time, expected)[:3]
    listed = ", ".join(map(str, found)) or f"none that is planned gains {WORTHWHILE:.0%}"
    return [*lines, f"what would gain most, each by itself: {listed}"]


def _made_of(time: StepTime, phase: str) -> str:
    """The largest parts of the rollouts' seconds; empty of other phases."""
    parts = time.rollouts.largest[:4] if phase == ROLLOUTS else []
    return "".join(f"{', ' if i else '  '}{name} {seconds:.1f}" for i, (name, seconds) in enumerate(parts))


def _bound(time: StepTime) -> str:
    rollouts, update = time.rollouts, time.update
    limit = f", often limited by {rollouts.limit}" if rollouts.limit else ""
    dropped = f", {rollouts.dropped} times one is dropped from its cache" if rollouts.dropped else ""
    shared = f"prefixes once: {update.saved():.2f} times fewer tokens; " if update.shares_prefixes else ""
    return (
        f"bounded by {time.bound} ({_most(time)}); an engine decodes {rollouts.at_once:.0f} rollouts at once in the "
        f"mean{limit}{dropped}; {shared}ranks wait for the busiest in {update.waited_share():.0%} of {UPDATE}"
    )


def _most(time: StepTime) -> str:
    """Name the largest part of the longest phase."""
    if time.bound == ROLLOUTS:
        return CALLS if time.rollouts.limit == CALLS else time.rollouts.largest[0][0]
    if time.bound != UPDATE:
        return "not divided"
    waits = time.update.update() > MUCH * time.update.update(exchanges=False)
    return "exchange between ranks" if waits else COMPUTED


def _counted(time: StepTime, expected: Expected) -> str:
    drawn = time.drawn
    tools = f"{drawn.calls} tool calls of {expected.tool_s:g} s (--tool-s) with results of {drawn.result:,} tokens"
    return (
        f"counted on: responses of {drawn.lengths.mean():,.0f} tokens in the mean (--response-tokens), prompts of "
        f"{drawn.prompt:,}; {tools if drawn.calls else 'no tool calls'}"
    )


def _compiled(time: StepTime) -> list[str]:
    """A line on compilation, whose gain differs too much between models to be estimated."""
    if not time.plan.inputs.config.policy.compile:
        return []
    return [
        "not estimated: what policy.compile=true saves; these are the seconds without it (measured on one H200: 1.06 "
        "times the tokens a second with blocks of 7B, 1.23 times with 1.5B; docs/hardware.md)"
    ]


def gains(time: StepTime, expected: Expected) -> list[Gain]:
    """Legal settings that fit and gain at least `WORTHWHILE` of a step, the largest gain first, one for each key."""
    found = [gain for change in time_changes(time) if (gain := _gain(time, change, expected)) is not None]
    best: dict[str, Gain] = {}
    for gain in sorted(found, key=lambda gain: -gain.seconds):
        best.setdefault(gain.change.key, gain)
    return list(best.values())


def _gain(time: StepTime, change: Change, expected: Expected) -> Gain | None:
    """None: it is refused, has not enough room, or gains too little."""
    plan, cluster = time.plan, change.config.cluster
    if not allowed(plan, change) or check_policy_options(change.config.policy, "cuda", cluster.policy_workers):
        return None
    other = again(plan.inputs, change.config)
    room = plan.inputs.machine.device_bytes
    if not fits(other) or (room is not None and other.need > max(ROOMY * room, plan.need)):
        return None
    found = step_time(other, expected)
    if isinstance(found, str) or time.seconds - found.seconds < WORTHWHILE * time.seconds:
        return None
    return Gain(change=change, seconds=time.seconds - found.seconds)


def time_changes(time: StepTime) -> Iterator[Change]:
    """Neighbours of a plan's settings: where and how things are computed, and those that `NOTES` names."""
    config = time.plan.inputs.config
    for settings in (*_of_updates(time), *_of_rollouts(config)):
        (key, value), *others = settings.items()
        changed = config
        for name, other in settings.items():
            changed = _with_value(changed, name.split("."), other)
        yield Change(key, " ".join([written(value), *(f"{name}={written(other)}" for name, other in others)]), changed)


def _with_value(section: Any, path: list[str], value: object) -> Any:
    """A copy of a section, or of a mapping of them, with another value at the end of a path of names."""
    name, *rest = path
    if isinstance(section, dict):
        return {**section, name: _with_value(section[name], rest, value)}
    return replace(section, **{name: _with_value(getattr(section, name), rest, value) if rest else value})


def _of_updates(time: StepTime) -> Iterator[dict[str, Any]]:
    config, shape = time.plan.inputs.config, time.plan.inputs.shape
    policy, train, tokens = config.policy, config.train, config.policy.max_microbatch_tokens
    yield from ({"policy.max_microbatch_tokens": other} for other in (max(1, tokens // 2), tokens * 2))
    every = policy.checkpoint_every
    rarer = [False, *([2 * every] if 2 * every <= shape.layers else [])] if every else [True]
    for blocks in rarer:
        for divisor in (1, 2, 4, 8) if every else (1,):
            fewer = max(1, tokens // divisor)
            yield {"policy.activation_checkpointing": blocks, "policy.max_microbatch_tokens": fewer}
    if shape.shares_prefixes and policy.share_prefixes is not SharePrefixes.ALWAYS:
        yield {"policy.share_prefixes": SharePrefixes.ALWAYS}
    if shape.plain and time.update.model.attention not in KNOWS_BORDERS and config.model.dtype is Dtype.BFLOAT16:
        yield {"model.attention": Attention.VARLEN}
    yield from ({"policy.offload": offload} for offload in (Offload.NONE, Offload.OPTIMIZER))
    yield from ({"policy.replicas": n} for n in possible_replicas(policy, config.cluster.policy_workers))
    if train.old_logprobs is OldLogprobs.TRAINER:
        yield {LEARNED: OldLogprobs.ENGINE}
    yield {"train.async_save": True}


def _of_rollouts(config: Config) -> Iterator[dict[str, Any]]:
    params, engines = config.engine.params, config.cluster.rollout_workers
    if (share := getattr(params, "gpu_memory_utilization", None)) is not None:
        for other in (share - SHARE_STEP, share + SHARE_STEP):
            yield {"engine.params.gpu_memory_utilization": min(1.0, max(SHARE_STEP, round(other, 2)))}
    for key, value in (
        ("engine.params.slots", params.slots),
        ("rollout.max_concurrent", config.rollout.max_concurrent),
    ):
        yield from ({key: other} for other in (max(1, value // 2), 2 * value))
    if hasattr(params, "tensor_parallel") and config.cluster.name == "ray":
        devices = engines * params.tensor_parallel
        for width in (params.tensor_parallel // 2, 2 * params.tensor_parallel):
            if width and devices % width == 0:
                yield {"engine.params.tensor_parallel": width, "cluster.rollout_workers": devices // width}
    for name, tool in config.tools.items():
        if hasattr(tool.params, "slots"):
            yield {f"tools.{name}.params.slots": 2 * tool.params.slots}
