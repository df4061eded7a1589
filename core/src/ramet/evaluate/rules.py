"""How a benchmark is measured: tools, call limits, sampling, prompt and system message.

Of each, what `benchmarks.NAME` says holds; then, of sampling, what `evaluate` says; then the benchmark's own
(`BenchmarkInfo`); then the default.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ramet.config.schema import BenchmarkConfig, EvaluateConfig
from ramet.plugins.component_checks import ALL_CALLS, QUESTION
from ramet.rollout.plan import RolloutPlan
from ramet.types import BenchmarkInfo, Message, Task

logger = logging.getLogger(__name__)
DEFAULTS = {"temperature": 0.6, "top_p": 0.95, "top_k": 0.0, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRules:
    """The settings of one benchmark. `prompt` is a template with `{question}`."""

    tools: tuple[str, ...] | None = None  # None: all that are configured
    limits: Mapping[str, int] = field(default_factory=dict)  # calls of a rollout, by tool
    max_tool_calls: int | None = None  # of all tools together; None: `rollout.max_tool_calls`
    sampling: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULTS))  # a value for every key of `DEFAULTS`
    prompt: str | None = None  # None: the question as the benchmark gives it
    system_prompt: str | None = None  # None: the rollout step's

    def applied(self, task: Task) -> Task:
        """The task with these tools and texts. What a task says of its own tools holds."""
        prompt = task.prompt
        if self.prompt is not None:
            text = self.prompt.replace(QUESTION, task.question)
            last = max(i for i, message in enumerate(prompt) if message.role == "user")
            prompt = (*prompt[:last], Message(role="user", content=text), *prompt[last + 1 :])
        if self.system_prompt is not None:
            rest = (message for message in prompt if message.role != "system")
            prompt = (Message(role="system", content=self.system_prompt), *rest)
        return replace(task, prompt=prompt, tools=self.tools if task.tools is None else task.tools)

    def plan(self, k: int) -> RolloutPlan:
        """k rollouts of each task, without forks."""
        sampling = self.sampling
        return RolloutPlan(
            group_size=k,
            temperature=sampling["temperature"],
            top_p=sampling["top_p"],
            top_k=int(sampling["top_k"]),
            min_p=sampling["min_p"],
            repetition_penalty=sampling["repetition_penalty"],
            max_tool_calls=self.max_tool_calls,
            tool_calls=self.limits,
            branch=False,
            salt="eval",
            step_deadline=False,
        )


def rules_of(
    info: BenchmarkInfo, settings: BenchmarkConfig, evaluate: EvaluateConfig, configured: Sequence[str]
) -> BenchmarkRules:
    """`configured`: names of the tools and tool sets of the run. Raises nothing: see `rule_problems`."""
    tools = None if settings.tools is None else tuple(settings.tools)
    if tools is None and info.tools:
        tools = tuple(name for name in info.tools if name in configured)
    allowed = configured if tools is None else tools
    stated = info.limits if settings.limits is None else settings.limits
    limits = {name: n for name, n in stated.items() if name in allowed}
    total = stated.get(ALL_CALLS)
    if total is None and limits and set(limits) == set(allowed):
        total = sum(limits.values())
    return BenchmarkRules(
        tools=tools,
        limits=limits,
        max_tool_calls=total,
        sampling=_sampling(info, settings, evaluate),
        prompt=info.prompt if settings.prompt is None else settings.prompt,
        system_prompt=info.system_prompt if settings.system_prompt is None else settings.system_prompt,
    )


def _sampling(info: BenchmarkInfo, settings: BenchmarkConfig, evaluate: EvaluateConfig) -> dict[str, float]:
    return {**DEFAULTS, **info.sampling, **evaluate.sampling, **settings.sampling}


def rule_problems(
    name: str, info: BenchmarkInfo, settings: BenchmarkConfig, configured: Sequence[str]
) -> Iterator[str]:
    """Yield the problems of `benchmarks.NAME` with tools, limits and prompt."""
    where, installed = f"benchmarks.{name}", ", ".join(configured) or "none"
    for tool in settings.tools or ():
        if tool not in configured:
            yield f"{where}.tools: {tool!r} is not configured; configured: {installed} (see tools=[NAME])"
    for tool, n in (settings.limits or {}).items():
        if tool != ALL_CALLS and tool not in configured:
            yield f"{where}.limits.{tool}: no tool of this name; allowed: {ALL_CALLS}, {', '.join(configured)}"
        if n < 0:
            yield f"{where}.limits.{tool}={n}: must be at least 0"
    if settings.prompt is not None and QUESTION not in settings.prompt:
        yield f"{where}.prompt={settings.prompt!r}: must hold {QUESTION}, where the question goes"


def split_problem(name: str, info: BenchmarkInfo, settings: BenchmarkConfig) -> str | None:
    if settings.split in info.splits:
        return None
    return f"benchmarks.{name}.split={settings.split}: no such split; allowed: {', '.join(info.splits)}"


def warn_of_missing_tools(name: str, info: BenchmarkInfo, settings: BenchmarkConfig, configured: Sequence[str]) -> None:
    """The benchmark's own protocol has tools that the run lacks, so its numbers compare with no published ones; or it
    limits the calls of an unknown tool.
    """
    unknown = [tool for tool in info.limits if tool not in (ALL_CALLS, *info.tools, *configured)]
    if unknown and settings.limits is None:
        message = "benchmarks.%s: it limits the calls of %s, which this run has no tool for: configured are %s"
        logger.warning(message, name, ", ".join(unknown), ", ".join(configured) or "none")
    missing = [tool for tool in info.tools if tool not in configured]
    if missing and settings.tools is None:
        logger.warning(
            "benchmarks.%s: the protocol of its plugin has the tools %s, of which %s is not configured: numbers do not "
            "compare with those published for that protocol. Add tools=[%s], or set benchmarks.%s.tools=[%s] if only "
            "what is configured is meant",
            name,
            ", ".join(info.tools),
            ", ".join(missing),
            ",".join(dict.fromkeys([*configured, *info.tools])),
            name,
            ",".join(configured),
        )
