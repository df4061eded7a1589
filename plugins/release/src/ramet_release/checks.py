"""Limits of the released schedule, found before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ramet import RolloutStep, ToolSchema
from ramet_release.internals import Capability, Config, OldLogprobs, Tags


def protocol_problems(step: RolloutStep, tools: Sequence[ToolSchema], stateful: Sequence[str]) -> list[str]:
    """List problems of the turn protocol; `stateful` names components with states."""
    problems = []
    if not isinstance(step, Tags):
        problems.append(
            "rollout_step: the released schedule has its own turn protocol, with the tags of rollout_step=tags; "
            f"got {type(step).__name__}"
        )
    for tool in tools:
        if tool.text_parameter is None:
            problems.append(
                f"tools.{tool.name}: the released schedule gives a tool the text between its tags; this one takes "
                "other arguments than one required string"
            )
    problems += [
        f"{name}: has states, which the released schedule cannot copy; choose another branch policy"
        for name in stateful
    ]
    return problems


def training_problems(config: Config, capabilities: frozenset[Capability]) -> Iterator[str]:
    """Yield problems of the run; `capabilities` are its engine's."""
    who = f"branch_policy={config.branch_policy.name}"
    if Capability.TOP_LOGPROBS not in capabilities:
        yield (
            f"{who} needs the log-probabilities of the most likely tokens, and engine {config.engine.name!r} reports "
            "none"
        )
    if config.train.staleness:
        yield f"train.staleness={config.train.staleness}: {who} runs a step after the last one's update; set 0"
    none = f"{who} trains ends of sequence that no engine sampled, so the engine has no log-probability of them"
    if config.train.old_logprobs is OldLogprobs.ENGINE:
        yield f"train.old_logprobs=engine: {none}; set trainer"
    if config.train.tis_cap is not None:
        yield f"train.tis_cap={config.train.tis_cap}: {none}; set null"
    if config.train.off_policy:
        yield f"train.off_policy={config.train.off_policy}: {none}; leave it out"
