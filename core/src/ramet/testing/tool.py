"""Checks of tools and of tool sets (hook 5)."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ramet.errors import InfraError, ToolError
from ramet.helpers import MODEL_MISTAKES, FunctionError
from ramet.plugins.component_checks import misfits
from ramet.plugins.output_checks import tool_problem
from ramet.rollout.stateful import is_stateful
from ramet.testing.checked import checked, crash, progress
from ramet.testing.doubles import local_services
from ramet.testing.expect import (
    FORK,
    ORIGINAL,
    EventLoopCheck,
    expect,
    expect_async,
    expect_async_call,
    expect_copy,
    expect_exercised,
    expect_independent,
    orders,
)
from ramet.testing.step_play import SEED, TASK
from ramet.types import Services, Tool, ToolCall, ToolSchema, ToolSet

DEADLINE_S = 60.0
_EXAMPLES: dict[str, tuple[Any, Any]] = {
    "string": ("1", "2"),
    "integer": (1, 2),
    "number": (1.5, 2.5),
    "boolean": (True, False),
    "array": ([], []),
    "object": ({}, {}),
}
_WRONG: dict[str, Any] = {
    "string": {"not": "a string"},
    "integer": "no integer",
    "number": "no number",
    "boolean": {"not": "a boolean"},
    "array": 7,
    "object": 7,
}


@checked()
def check_tool(tool: Tool, *, name: str | None = None, examples: Sequence[Mapping[str, Any]] = ()) -> None:
    """Raise `AssertionError` unless the tool keeps the contract.

    A schema that a model can read; an async call; wrong arguments raise `ToolError`; only `ToolError` and `InfraError`
    escape; calls at the same time give the same results as one after the other; metadata is JSON. It is started first,
    if it has a `start`. A tool with states opens, forks and closes them: a fork and its original do not affect each
    other, or, with `replay`, two states of one task and seed behave the same.

    `name` is the name that it is registered under. `examples` are arguments of valid calls (best: two that give
    different results; for a tool with states, calls that change its state and show it). Without them, plausible ones
    are made from the schema. It fails if no call works, or if a shared state would not be noticed.
    """
    _check_schema(getattr(tool, "schema", None), name)
    _check_methods(tool)

    async def check() -> None:
        with local_services() as services:
            await _start(tool, services)
            await _check_calls(tool, _valid(tool, examples))

    asyncio.run(check())


@checked("open")
def check_tool_set(
    make: Callable[[], ToolSet], *, examples: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
) -> None:
    """Raise `AssertionError` unless the sets that `make` returns keep the contract.

    Each is started, opened and closed once, as before a run and then in a worker: both have the same tools, under
    distinct names, and each tool keeps the contract of tools. `examples`: arguments of valid calls by name of the tool.
    """
    asyncio.run(_check_tool_set(make, dict(examples or {})))


async def _check_tool_set(make: Callable[[], ToolSet], examples: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    schemas = await _open_and_close(make(), None)
    unknown = sorted(set(examples) - {schema.name for schema in schemas})
    expect(not unknown, f"examples are given for {', '.join(unknown)}, which the set does not have")
    again = await _open_and_close(make(), examples)
    expect(
        again == schemas,
        f"opened twice it had the tools {schemas} and then {again}: always offer the same, in one order",
    )


async def _open_and_close(
    tool_set: ToolSet, examples: Mapping[str, Sequence[Mapping[str, Any]]] | None
) -> list[ToolSchema]:
    """The schemas. With `examples` the tools are checked, too."""
    expect_async(getattr(tool_set, "open", None), "open")
    expect_async(getattr(tool_set, "aclose", None), "aclose")
    with local_services() as services:
        await _start(tool_set, services)
        tools = await tool_set.open()
        try:
            for tool in tools:
                _check_schema(getattr(tool, "schema", None), None)
                _check_methods(tool)
            names = [tool.schema.name for tool in tools]
            expect(len(set(names)) == len(names), f"has tools of the same name: {', '.join(names)}")
            for tool in tools if examples is not None else ():
                await _start(tool, services)
                await _check_calls(tool, _valid(tool, (examples or {}).get(tool.schema.name, ())))
        finally:
            await tool_set.aclose()
    return [tool.schema for tool in tools]


def _check_methods(tool: Tool) -> None:
    expect_async_call(tool)
    for problem in misfits(tool, "tool"):
        raise AssertionError(problem)
    if hasattr(tool, "aclose"):
        expect_async(tool.aclose, "aclose")


async def _start(component: object, services: Services) -> None:
    if hasattr(component, "start"):
        expect_async(component.start, "start")
        await component.start(services)


def _valid(tool: Tool, examples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(example) for example in examples] or [_example(tool.schema, 0), _example(tool.schema, 1)]


def _check_schema(schema: Any, name: str | None) -> None:
    expect(isinstance(schema, ToolSchema), f"schema is {type(schema).__name__}: give a ToolSchema")
    expect(
        schema.name.isidentifier(), f"schema.name is {schema.name!r}: use letters, digits and underscores (it is a tag)"
    )
    expect(
        name is None or schema.name == name, f"schema.name is {schema.name!r} but it is registered as {name!r}: use one"
    )
    expect(
        isinstance(schema.description, str) and schema.description.strip() != "",
        "schema.description is empty: say what the tool does",
    )
    expect(
        schema.idempotent or not schema.deterministic,
        "schema.deterministic is True and schema.idempotent False: identical calls may be answered by one execution, "
        "so a tool that changes something cannot be deterministic",
    )
    properties = schema.parameters.get("properties", {}) if isinstance(schema.parameters, Mapping) else {}
    for parameter, spec in properties.items():
        typed = isinstance(spec, Mapping) and ("type" in spec or "enum" in spec or "anyOf" in spec or "oneOf" in spec)
        expect(typed, f"parameter {parameter!r} of the schema has no type: add one")


async def _check_calls(tool: Tool, valid: Sequence[dict[str, Any]]) -> None:
    try:
        for what, arguments in _wrong_arguments(tool.schema, valid[0]):
            kind, text = await _outcome(tool, arguments, "wrong")
            expect(
                kind == "ToolError",
                f"a call {what} gave {kind} ({text!r}): check the arguments and raise ToolError with a text that "
                "says to the model what is wrong",
            )
        surplus = {**valid[0], "no_such_argument": 1}
        await _outcome(tool, surplus, "surplus")
        await _check_concurrency(tool, valid)
        if is_stateful(tool):
            await _check_states(tool, valid)
    finally:
        if hasattr(tool, "aclose"):
            await tool.aclose()


async def _check_concurrency(tool: Tool, valid: Sequence[dict[str, Any]]) -> None:
    calls = [valid[0], valid[-1]] * 2
    alone = []
    with EventLoopCheck() as guard:
        for i, arguments in enumerate(calls):
            alone.append(await _outcome(tool, arguments, f"alone{i}"))
            await guard.turn()
        await guard.check()
    expect(
        any(kind == "ToolResult" for kind, _ in alone),
        f"no call was exercised: {valid[0]} gave {alone[0]} and {valid[-1]} {alone[1]}; give examples of calls that "
        "work (check_plugin: examples={'tools.NAME': […]}), and options with which its service answers",
    )
    repeatable = alone[:2] == alone[2:]
    expect(
        repeatable or not tool.schema.deterministic,
        f"schema.deterministic is True, but the arguments {valid[0]} gave {alone[0]} and then {alone[2]}",
    )
    if not tool.schema.concurrent:
        return
    together = await asyncio.gather(*(_outcome(tool, arguments, f"together{i}") for i, arguments in enumerate(calls)))
    expect(
        not repeatable or list(together) == alone,
        f"calls at the same time interfere: one after the other they gave {alone}, together {together}; keep nothing "
        "of a call on the tool itself, or set schema.concurrent=False",
    )


async def _outcome(tool: Tool, arguments: dict[str, Any], rollout: str) -> tuple[str, str]:
    """Outcome of one call in a separate rollout: (`ToolResult`, `ToolError` or `InfraError`; text)."""
    state = await _open(tool)
    try:
        return await _outcome_in(tool, arguments, rollout, state)
    finally:
        if state is not None:
            await tool.close(state)  # type: ignore[attr-defined]


async def _open(tool: Any) -> Any:
    if not is_stateful(tool):
        return None
    state = await tool.open(TASK, SEED)
    expect(state is not None, "open returned None: return a state")
    return state


async def _check_states(tool: Any, valid: Sequence[dict[str, Any]]) -> None:
    """Fork after each call, continue fork and original differently, and expect each to act as a separate state."""
    if tool.forks == "none":
        return
    exercised = False
    for n in range(1, len(valid) + 1):
        rest = [*valid[n:], *valid[:n]]
        exercised |= await _check_fork(tool, valid[:n], {ORIGINAL: rest, FORK: rest[::-1]})
    expect_exercised(exercised or tool.forks != "copy", "examples")


async def _check_fork(
    tool: Any, before: Sequence[dict[str, Any]], plans: Mapping[str, Sequence[dict[str, Any]]]
) -> bool:
    """Fork after the calls `before`; returns whether a fork that shares its state would have been noticed."""
    alone = {}
    for who, calls in plans.items():
        both = [await _alone(tool, [*before, *calls]) for _ in range(2)]
        expect(
            both[0] == both[1],
            f"open gave two states of the same task and seed that answer the same calls with {both[0]} and {both[1]}: "
            "a replay cannot work, nor can forks be compared; draw only from the seed that it is given",
        )
        alone[who] = both[0][len(before) :]
    if tool.forks != "copy":
        return False
    for order in orders(len(plans[FORK])):
        state = await _after(tool, before)
        fork = await tool.fork(state)
        expect_copy(fork, state)
        outcomes = await _both(tool, {ORIGINAL: state, FORK: fork}, plans, order)
        for who in (FORK, ORIGINAL):
            expect_independent(who, outcomes[who], alone[who])
    shared = await _after(tool, before)
    try:
        return await _both(tool, {ORIGINAL: shared, FORK: shared}, plans, orders(len(plans[FORK]))[-1]) != alone
    except AssertionError:  # it crashed of it
        return True


async def _after(tool: Any, calls: Sequence[dict[str, Any]]) -> Any:
    """A state in which these calls have been made."""
    state = await _open(tool)
    for arguments in calls:
        await _outcome_in(tool, arguments, "states", state)
    return state


async def _alone(tool: Any, calls: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    state = await _open(tool)
    outcomes = [await _outcome_in(tool, arguments, "states", state) for arguments in calls]
    await tool.close(state)
    return outcomes


async def _both(
    tool: Any, states: Mapping[str, Any], plans: Mapping[str, Sequence[dict[str, Any]]], order: Sequence[str]
) -> dict[str, list[tuple[str, str]]]:
    """The results of each, called in this order; a state is closed after its last call."""
    outcomes: dict[str, list[tuple[str, str]]] = {who: [] for who in plans}
    for i, who in enumerate(order):
        arguments = plans[who][len(outcomes[who])]
        outcomes[who].append(await _outcome_in(tool, arguments, "states", states[who]))
        if not any(states[other] is states[who] for other in order[i + 1 :]):
            await tool.close(states[who])
    return outcomes


async def _outcome_in(tool: Tool, arguments: dict[str, Any], rollout: str, state: Any) -> tuple[str, str]:
    copied = copy.deepcopy(arguments)
    call = ToolCall(
        name=tool.schema.name,
        arguments=copied,
        rollout=rollout,
        task=None if tool.schema.deterministic else TASK,
        deadline_s=DEADLINE_S,
        state=state,
    )
    try:
        result = await tool(call)
    except FunctionError as error:
        if not isinstance(error.__cause__, MODEL_MISTAKES):
            assert error.__cause__ is not None
            raise AssertionError(
                f"{crash(error.__cause__)}, called with {arguments}: raise ToolError if the model caused it"
            ) from error
        progress()
        return "ToolError", str(error)
    except (ToolError, InfraError) as error:
        progress()
        return type(error).__name__, str(error)
    except (Exception, SystemExit) as error:
        raise AssertionError(
            f"{crash(error)}, called with {arguments}: raise ToolError for the model's mistakes and InfraError for "
            "infrastructure failures"
        ) from error
    expect(copied == arguments, f"changed the arguments {arguments} to {copied}: work on a copy")
    problem = tool_problem(result)
    expect(problem is None, f"called with {arguments}: {problem}")
    _check_metadata(result.metadata)
    return "ToolResult", result.text


def _check_metadata(metadata: Any) -> None:
    expect(isinstance(metadata, Mapping), f"returned metadata {metadata!r}: give a mapping")
    try:
        json.dumps(dict(metadata), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"returned metadata {metadata!r}, which is not JSON: {error}") from error


def _example(schema: ToolSchema, index: int) -> dict[str, Any]:
    properties = schema.parameters.get("properties", {})
    return {name: _value(properties[name], index) for name in schema.parameters.get("required", [])}


def _value(spec: Mapping[str, Any], index: int) -> Any:
    if "enum" in spec:
        return spec["enum"][index % len(spec["enum"])]
    return _EXAMPLES.get(str(spec.get("type")), ("1", "2"))[index]


def _wrong_arguments(schema: ToolSchema, valid: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in schema.parameters.get("required", []):
        yield f"without {name!r}", {key: value for key, value in valid.items() if key != name}
        yield f"with null as {name!r}", {**valid, name: None}
    for name, spec in schema.parameters.get("properties", {}).items():
        wrong = _WRONG.get(str(spec.get("type")))
        if wrong is not None:
            yield f"with {wrong!r} as {name!r} ({spec['type']})", {**valid, name: wrong}
