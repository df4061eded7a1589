"""The check of tools passes good ones and names what is wrong with each broken one."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Any

import pytest

from ramet import ToolCall, ToolError, ToolResult, ToolSchema, function_tool
from ramet.testing import check_tool

SCHEMA = ToolSchema(
    name="double",
    description="Double a number.",
    parameters={"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
)


class Double:
    schema = SCHEMA

    async def __call__(self, call: ToolCall) -> ToolResult:
        x = call.arguments.get("x")
        if not isinstance(x, int):
            raise ToolError(f"x must be an integer, got {x!r}")
        return ToolResult(text=await self.compute(x))

    async def compute(self, x: int) -> str:
        await asyncio.sleep(0)
        return str(2 * x)


class Stateful(Double):
    """State of a rollout belongs to open and close."""

    def __init__(self) -> None:
        self.opened: dict[str, int] = {}

    async def open(self, rollout: str) -> None:
        self.opened[rollout] = 0

    async def close(self, rollout: str) -> None:
        del self.opened[rollout]

    async def __call__(self, call: ToolCall) -> ToolResult:
        self.opened[call.rollout] += 1
        return await super().__call__(call)


class CrashesOnWrong(Double):
    async def __call__(self, call: ToolCall) -> ToolResult:
        return ToolResult(text=str(2 * call.arguments["x"]))


class TakesAnything(Double):
    async def __call__(self, call: ToolCall) -> ToolResult:
        return ToolResult(text=str(call.arguments))


class Interferes(Double):
    async def compute(self, x: int) -> str:
        self.x = x
        await asyncio.sleep(0)
        return str(2 * self.x)


class InterferesButSaysSo(Interferes):
    schema = ToolSchema(name="double", description="Double a number.", parameters=SCHEMA.parameters, concurrent=False)


class NotAsync(Double):
    def __call__(self, call: ToolCall) -> ToolResult:  # type: ignore[override]
        return ToolResult(text="")


class NoText(Double):
    async def compute(self, x: int) -> Any:
        return 2 * x


class SaysDeterministic(Double):
    schema = ToolSchema(name="double", description="Double a number.", parameters=SCHEMA.parameters, deterministic=True)
    counter = itertools.count()

    async def compute(self, x: int) -> str:
        return str(next(self.counter))


class ChangesArguments(Double):
    async def __call__(self, call: ToolCall) -> ToolResult:
        result = await super().__call__(call)
        call.arguments.clear()  # type: ignore[attr-defined]
        return result


def with_schema(**changed: Any) -> Double:
    tool = Double()
    whole = {"name": "double", "description": "Double.", "parameters": SCHEMA.parameters} | changed
    tool.schema = ToolSchema(**whole)
    return tool


def add(a: float, b: float = 0.0) -> float:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("good", [Double(), Stateful(), InterferesButSaysSo(), function_tool(add)])
def test_a_good_tool_passes(good: Any) -> None:
    check_tool(good)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (CrashesOnWrong(), "crashed with KeyError: 'x'"),
        (TakesAnything(), "without 'x' gave ToolResult"),
        (Interferes(), "calls at the same time interfere"),
        (NotAsync(), "not async"),
        (NoText(), "return a ToolResult with a text"),
        (SaysDeterministic(), "schema.deterministic is True"),
        (ChangesArguments(), "changed the arguments"),
        (with_schema(name="no tag"), "schema.name is 'no tag'"),
        (with_schema(description=""), "description is empty"),
        (with_schema(parameters={"type": "string"}), "JSON schema of type object"),
        (with_schema(parameters={"type": "object", "properties": {}, "required": ["y"]}), "requires y"),
        (with_schema(parameters={"type": "object", "properties": {"x": {}}}), "'x' of the schema says no type"),
    ],
)
def test_a_broken_tool_is_caught(broken: Any, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_tool(broken)
    assert re.search(message, str(caught.value))


def test_the_schema_must_use_the_registered_name() -> None:
    with pytest.raises(AssertionError, match="registered as 'twice'"):
        check_tool(Double(), name="twice")


def test_examples_stand_in_where_the_schema_says_too_little() -> None:
    class Dates(Double):
        async def compute(self, x: int) -> str:
            if x < 1900:
                raise ValueError(x)
            return await super().compute(x)

    with pytest.raises(AssertionError, match="crashed with ValueError"):
        check_tool(Dates())
    check_tool(Dates(), examples=[{"x": 1999}, {"x": 2001}])
