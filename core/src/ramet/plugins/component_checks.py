"""Whether what a plugin built has the shape that its hook asks for: attributes, methods, parameters, async or not.

Found here it is one line that names the plugin, before anything starts; found later it is a traceback in the middle of
a step, or rollouts that no reward can judge. `ramet.testing` checks what the methods *do*.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ramet.types import (
    AdvantageEstimator,
    Agent,
    AgentSettings,
    Benchmark,
    BenchmarkInfo,
    BranchPolicy,
    Environment,
    PolicyLoss,
    Reward,
    RolloutStep,
    Services,
    Stateful,
    StepBudget,
    Task,
    Tool,
    ToolSchema,
    ToolSet,
)
from ramet.types.option import SAMPLING

JSON_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
FORKS = ("copy", "replay", "none")
AGENT_FORKS = ("replay", "none")
ALL_CALLS = "max_tool_calls"  # among a benchmark's limits: of all tools together
QUESTION = "{question}"  # in a benchmark's prompt
STATEFUL = ("rollout step", "tool")  # kinds that may have states
PROTOCOLS: dict[str, type[Any]] = {
    "rollout step": RolloutStep,
    "branch policy": BranchPolicy,
    "advantage estimator": AdvantageEstimator,
    "policy loss": PolicyLoss,
    "tool": Tool,
    "reward": Reward,
    "benchmark": Benchmark,
}


class _Starts:
    """Optional methods of tools, tool sets and rewards."""

    async def start(self, services: Services) -> None: ...


class _ChecksTasks:
    """Optional methods of rewards."""

    def check_task(self, task: Task) -> str | None: ...


class _ChecksTools:
    def check_tools(self, tools: Sequence[str]) -> Sequence[str]: ...  # type: ignore[empty-body]


MADE_OF_FUNCTIONS = {
    "tool": "a function becomes a tool with function_tool(function)",
    "reward": "a function of one rollout becomes a reward with per_rollout(function)",
}
OPTIONAL: dict[str, tuple[type[Any], tuple[str, ...]]] = {  # method -> its form, and the kinds that may have it
    "start": (_Starts, ("tool", "reward")),
    "check_task": (_ChecksTasks, ("reward",)),
    "check_tools": (_ChecksTools, ("reward",)),
    "allocate": (StepBudget, ("branch policy",)),
}


def is_tool_set(built: object) -> bool:
    """Whether a factory of hook 5 returned a set: it has `open` and no schema."""
    return hasattr(built, "open") and not hasattr(built, "schema")


def is_agent(built: object) -> bool:
    """Whether a factory of hook 1 returned an agent: it has `run` and is not called for turns."""
    return hasattr(built, "run") and not callable(built)


def misfits(built: object, kind: str) -> list[str]:
    """Reasons why `built` is not a component of this kind (as registries call it), empty if it is one."""
    if kind == "tool" and is_tool_set(built):
        problems = [*_attributes(built, ToolSet), *_methods(built, ToolSet)]
    elif kind == "rollout step" and is_agent(built):
        problems = [*_methods(built, Agent), *_agent_problems(built)]
    elif kind in PROTOCOLS:
        problems = [*_attributes(built, PROTOCOLS[kind]), *_methods(built, PROTOCOLS[kind])]
        problems += _schema_problems(built) if kind == "tool" else ()
        problems += _stateful(built, kind) if kind in STATEFUL else ()
        problems += info_problems(getattr(built, "info", None)) if kind == "benchmark" else ()
        owner = getattr(built, "state_owner", None)
        problems += (
            [] if owner is None else [f"its attribute 'state_owner' {problem}" for problem in _stateful(owner, kind)]
        )
    else:
        return []
    for name, (form, kinds) in OPTIONAL.items():
        problems += _methods(built, form) if kind in kinds and hasattr(built, name) else ()
    if problems and kind in MADE_OF_FUNCTIONS and inspect.isfunction(built) and not is_async(built):
        problems.append(MADE_OF_FUNCTIONS[kind])
    return problems


def _agent_problems(agent: object) -> Iterator[str]:
    """Yield problems of what an agent declares."""
    forks, settings = getattr(agent, "forks", None), getattr(agent, "settings", AgentSettings())
    if forks not in AGENT_FORKS:
        yield f"forks is {forks!r:.80}; set it to one of {', '.join(AGENT_FORKS)}"
    if not isinstance(settings, AgentSettings):
        yield f"settings is {settings!r:.80}; set it to AgentSettings(…)"


def _schema_problems(tool: object) -> Iterator[str]:
    """Yield problems of a tool's schema: parts that no call could satisfy, or no prompt could describe."""
    schema = getattr(tool, "schema", None)
    if not isinstance(schema, ToolSchema):  # reported as an attribute
        return
    parameters = schema.parameters
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        yield f"schema.parameters is {parameters!r:.200}: give a JSON schema of type object"
        return
    try:
        json.dumps(parameters)
    except (TypeError, ValueError, RecursionError) as error:
        yield f"schema.parameters is not JSON: {error}"
        return
    properties = parameters.get("properties") or {}
    if not isinstance(properties, Mapping):
        yield f"properties of the schema are {properties!r:.200}: give a map of names to schemas"
        return
    for parameter, spec in properties.items():
        kinds = spec.get("type") or [] if isinstance(spec, Mapping) else []
        unknown = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind not in JSON_TYPES]
        if unknown:
            yield f"parameter {parameter!r} of the schema has the type {unknown[0]!r}; allowed: {', '.join(JSON_TYPES)}"
    required = parameters.get("required") or []
    if not isinstance(required, list | tuple):
        yield f"required of the schema is {required!r:.200}: give a list of names"
        return
    absent = sorted(set(required) - set(properties))
    if absent and not parameters.get("additionalProperties", "properties" not in parameters):
        yield f"the schema requires {', '.join(absent)}, which properties do not describe: every call would be refused"


def sampling_problem(key: str, value: object) -> str | None:
    """The problem of a value of a benchmark's sampling."""
    if key not in SAMPLING:
        return f"no such key; allowed: {', '.join(SAMPLING)}"
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "must be a finite number"
    return SAMPLING[key].problem(value)


def info_problems(info: object) -> Iterator[str]:
    """Yield what a benchmark says of itself and no evaluation could follow."""
    if not isinstance(info, BenchmarkInfo):  # reported as an attribute
        return
    for name in ("splits", "metrics", "tools"):
        texts = getattr(info, name)
        if not _are_texts(texts) or (name != "tools" and not texts):
            yield f"info.{name} is {texts!r:.80}: give a tuple of {'' if name == 'tools' else 'one or more '}texts"
            return
    if not isinstance(info.limits, Mapping) or not isinstance(info.sampling, Mapping):
        yield "info.limits and info.sampling are mappings of names to numbers"
        return
    for tool, n in info.limits.items():
        if info.tools and tool not in (ALL_CALLS, *info.tools):
            allowed = ", ".join((ALL_CALLS, *info.tools))
            yield f"info.limits names {tool!r}, which info.tools does not; allowed: {allowed}"
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            yield f"info.limits[{tool!r}] is {n!r:.80}: must be a whole number, at least 0"
    for key, value in info.sampling.items():
        if problem := sampling_problem(key, value):
            yield f"info.sampling[{key!r}] is {value!r:.80}: {problem}"
    if info.prompt is not None and QUESTION not in info.prompt:
        yield f"info.prompt is {info.prompt!r:.80}: must contain {QUESTION}, where the question goes"


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _stateful(built: object, kind: str) -> Iterator[str]:
    """Members of `Stateful` and `Environment`: each by itself is of no use."""
    of_environment = [
        name for name in ("begin", "state_key", "finish") if kind == "rollout step" and hasattr(built, name)
    ]
    of_stateful = [name for name in ("forks", "open", "fork", "close") if hasattr(built, name)]
    if not of_environment and not of_stateful:
        return
    has = " and ".join(f"`{name}`" for name in of_stateful + of_environment)
    forks = getattr(built, "forks", None)
    if forks not in FORKS:
        yield (
            f"has {has} but no `forks`; expected one of {', '.join(map(repr, FORKS))}"
            if forks is None
            else (f"its attribute 'forks' is {forks!r:.80}; expected one of {', '.join(map(repr, FORKS))}")
        )
    needed = ["open", "close", *(["fork"] if forks == "copy" or hasattr(built, "fork") else [])]
    for name in needed:
        problem = _method(built, name, vars(Stateful)[name])
        if problem:
            yield f"has {has} but {problem}" if not hasattr(built, name) else problem
    for name in of_environment:
        problem = _method(built, name, vars(Environment)[name])
        if problem:
            yield problem


def _attributes(built: object, protocol: type[Any]) -> Iterator[str]:
    for name, expected in typing.get_type_hints(protocol).items():
        if not hasattr(built, name):
            if hasattr(protocol, name):  # it has a default, so it may be left out
                continue
            yield f"lacks the attribute {name!r}"
        elif dataclasses.is_dataclass(expected) and not isinstance(getattr(built, name), typing.cast(type, expected)):
            yield f"its attribute {name!r} is {getattr(built, name)!r:.80}, not a {getattr(expected, '__name__', '')}"


def _methods(built: object, protocol: type[Any]) -> Iterator[str]:
    for name, expected in vars(protocol).items():
        if inspect.isfunction(expected) and (name == "__call__" or not name.startswith("_")):
            problem = _method(built, name, expected)
            if problem:
                yield problem


def _method(built: object, name: str, expected: Any) -> str | None:
    wanted = f"{'async ' if inspect.iscoroutinefunction(expected) else ''}def {name}{_without_types(expected)}"
    member: Any = built if name == "__call__" and callable(built) else getattr(built, name, None)
    if isinstance(member, type):
        return f"is the class {member.__name__} itself; the factory must return an object"
    if not callable(member):
        return f"lacks `{wanted}`"
    if any(map(inspect.isasyncgenfunction, (member, getattr(type(member), "__call__", None)))):  # noqa: B004
        return f"has a `{name}` with `yield`, which makes it an async generator; expected `{wanted}` that returns"
    if is_async(member) != is_async(expected):
        return f"has {'an async' if is_async(member) else 'a plain'} `{name}`; expected `{wanted}`"
    parameters = list(inspect.signature(expected).parameters)[1:]
    try:
        inspect.signature(member).bind(*parameters)
    except TypeError:
        return f"has `{name}{inspect.signature(member)}`; expected `{wanted}`"
    except ValueError:  # a built-in says nothing about its parameters
        return None
    return None


def is_async(function: Any) -> bool:
    inner = inspect.unwrap(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def _without_types(function: Any) -> str:
    return f"({', '.join(list(inspect.signature(function).parameters)[1:])})"
