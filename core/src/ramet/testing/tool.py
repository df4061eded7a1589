"""Checks of tools and of tool sets (hook 5)."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ramet.component_checks import misfits
from ramet.errors import InfraError, ToolError
from ramet.output_checks import tool_problem
from ramet.rollout.stateful import is_stateful
from ramet.testing.doubles import local_services
from ramet.testing.expect import EventLoopCheck, expect, expect_async, expect_async_call
from ramet.testing.step_play import SEED, TASK
from ramet.types import Services, Tool, ToolCall, ToolSchema, ToolSet

TIMEOUT_S = 60.0
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


def check_tool(tool: Tool, *, name: str | None = None, examples: Sequence[Mapping[str, Any]] = ()) -> None:
    """Raise `AssertionError` unless the tool keeps the contract.

    A schema that a model can read; an async call; wrong arguments raise `ToolError`; nothing else than `ToolError` and
    `InfraError` escapes; calls at the same time give what they give one after the other; metadata is JSON. It is
    started first, if it has a `start`. One that holds states opens, forks and closes them: a fork and its original do
    not see what the other does, or, with `replay`, two states of one task and seed go the same way.

    `name` is the name that it is registered under. `examples` are arguments of valid calls (two that give different
    results are best); without them, plausible ones are made from the schema.
    """
    _check_schema(getattr(tool, "schema", None), name)
    _check_methods(tool)

    async def check() -> None:
        with local_services() as services:
            await _start(tool, services)
            await _check_calls(tool, _valid(tool, examples))

    asyncio.run(check())


def check_tool_set(
    make: Callable[[], ToolSet], *, examples: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
) -> None:
    """Raise `AssertionError` unless the sets that `make` returns keep the contract.

    Each is started, opened and closed once, as before a run and then in a worker: both have the same tools, under names
    of their own, and each tool keeps the contract of tools. `examples`: arguments of valid calls by name of the tool.
    """
    asyncio.run(_check_tool_set(make, dict(examples or {})))


async def _check_tool_set(make: Callable[[], ToolSet], examples: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    known = await _open_and_close(make(), None)
    unknown = sorted(set(examples) - {schema.name for schema in known})
    expect(not unknown, f"examples are given for {', '.join(unknown)}, which the set does not have")
    again = await _open_and_close(make(), examples)
    expect(
        again == known, f"opened twice it had the tools {known} and then {again}: always offer the same, in one order"
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
    parameters = schema.parameters
    is_object = isinstance(parameters, Mapping) and parameters.get("type") == "object"
    expect(is_object, f"schema.parameters is {parameters!r}: give a JSON schema of type object")
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    for parameter, spec in properties.items():
        typed = isinstance(spec, Mapping) and ("type" in spec or "enum" in spec or "anyOf" in spec or "oneOf" in spec)
        expect(typed, f"parameter {parameter!r} of the schema has no type: add one")
    unknown = sorted(set(required) - set(properties))
    expect(not unknown, f"the schema requires {', '.join(unknown)}, which properties do not describe")
    try:
        json.dumps(parameters)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"schema.parameters is not JSON: {error}") from error


async def _check_calls(tool: Tool, valid: Sequence[dict[str, Any]]) -> None:
    try:
        for what, arguments in _wrong_arguments(tool.schema, valid[0]):
            kind, text = await _outcome(tool, arguments, "wrong")
            expect(
                kind == "ToolError",
                f"a call {what} gave {kind} ({text!r}): check the arguments and raise ToolError with a text that "
                "tells the model what is wrong",
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
    """What one call in a rollout of its own gave: (`ToolResult`, `ToolError` or `InfraError`; text)."""
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
    """After a call, a fork and its original go on one after the other, and each gives what a state alone gives."""
    calls = [valid[0], valid[-1], valid[0]]

    async def go_on(state: Any, made: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
        return [await _outcome_in(tool, arguments, "states", state) for arguments in made]

    alone = []
    for _ in range(2):
        state = await _open(tool)
        alone.append(await go_on(state, calls))
        await tool.close(state)
    expect(
        alone[0] == alone[1] or tool.forks != "replay",
        f"two states of the same task and seed gave {alone[0]} and {alone[1]} for the same calls: a replay cannot "
        "work; draw only from the seed that open is given",
    )
    if tool.forks != "copy" or alone[0] != alone[1]:
        return
    for fork_first in (False, True):
        state = await _open(tool)
        await go_on(state, calls[:1])
        fork = await tool.fork(state)
        expect(fork is not None, "fork returned None: return a copy of the state")
        expect(fork is not state, "fork returned the state itself: return an independent copy")
        for one in (fork, state) if fork_first else (state, fork):
            found = await go_on(one, calls[1:])
            await tool.close(one)
            expect(
                found == alone[0][1:],
                f"{'the original' if one is state else 'a fork'} gave {found}, and a state alone {alone[0][1:]}, after "
                "the other had gone on and was closed: fork must copy everything that the state holds",
            )


async def _outcome_in(tool: Tool, arguments: dict[str, Any], rollout: str, state: Any) -> tuple[str, str]:
    given = copy.deepcopy(arguments)
    call = ToolCall(
        name=tool.schema.name,
        arguments=given,
        rollout=rollout,
        task=None if tool.schema.deterministic else TASK,
        deadline_s=TIMEOUT_S,
        state=state,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            result = await tool(call)
    except (ToolError, InfraError) as error:
        return type(error).__name__, str(error)
    except Exception as error:
        raise AssertionError(
            f"crashed with {type(error).__name__}: {error}, called with {arguments}: raise ToolError for the model's "
            "mistakes and InfraError for ours"
        ) from error
    expect(given == arguments, f"changed the arguments {arguments} to {given}: work on a copy")
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
