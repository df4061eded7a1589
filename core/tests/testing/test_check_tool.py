"""The check of tools passes good ones and names what is wrong with each broken one."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from ramet import Services, Task, Tool, ToolCall, ToolError, ToolResult, ToolSchema, function_tool
from ramet.testing import check_tool, check_tool_set, echo_tool

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


class Counts(Double):
    """Adds up what it is called with, in the rollout's own state."""

    forks = "copy"

    def __init__(self) -> None:
        self.left_open = 0

    async def open(self, task: Task, seed: int) -> list[int]:
        self.left_open += 1
        return [0]

    async def fork(self, state: list[int]) -> list[int]:
        self.left_open += 1
        return list(state)

    async def close(self, state: list[int]) -> None:
        self.left_open -= 1

    async def __call__(self, call: ToolCall) -> ToolResult:
        doubled = await super().__call__(call)
        call.state[0] += int(doubled.text)
        return ToolResult(text=str(call.state[0]))


class SharesItsState(Counts):
    async def fork(self, state: list[int]) -> list[int]:
        return state


class CopiesHalf(Counts):
    async def open(self, task: Task, seed: int) -> list[int]:
        return [0, seed]

    async def fork(self, state: list[int]) -> list[int]:
        return [0]


class OpensNothing(Counts):
    async def open(self, task: Task, seed: int) -> None:  # type: ignore[override]
        return None


class CannotBeReplayed(Counts):
    forks = "replay"
    opened = itertools.count()

    async def open(self, task: Task, seed: int) -> list[int]:
        return [next(self.opened)]


class NeverCloses(Counts):
    close = None  # type: ignore[assignment]


class SaysNotHowItForks(Counts):
    forks = "perhaps"


class Started(Double):
    """Cannot be called before it was started."""

    async def start(self, services: Services) -> None:
        self.limiter = services.limiter("double", 1000 * services.seed)
        self.file = services.folder / "calls"

    async def __call__(self, call: ToolCall) -> ToolResult:
        result = await super().__call__(call)
        await self.limiter.wait()
        self.file.touch()
        assert call.deadline_s is not None and call.task is not None
        return result


class PlainStart(Double):
    def start(self, services: Services) -> None: ...


class OddMetadata(Double):
    async def __call__(self, call: ToolCall) -> ToolResult:
        return replace(await super().__call__(call), metadata={"seen": {1}})


class OnceAndShared(Double):
    schema = replace(SCHEMA, deterministic=True, idempotent=False)


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


@pytest.mark.parametrize("good", [Double(), InterferesButSaysSo(), function_tool(add)])
def test_a_good_tool_passes(good: Any) -> None:
    check_tool(good)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (CrashesOnWrong(), "crashed with KeyError: 'x'"),
        (TakesAnything(), "without 'x' gave ToolResult"),
        (Interferes(), "calls at the same time interfere"),
        (NotAsync(), "not async"),
        (NoText(), "return a ToolResult"),
        (SaysDeterministic(), "schema.deterministic is True"),
        (ChangesArguments(), "changed the arguments"),
        (with_schema(name="no tag"), "schema.name is 'no tag'"),
        (with_schema(description=""), "description is empty"),
        (with_schema(parameters={"type": "string"}), "JSON schema of type object"),
        (with_schema(parameters={"type": "object", "properties": {}, "required": ["y"]}), "requires y"),
        (
            with_schema(parameters={"type": "object", "properties": {}, "required": "xy"}),
            "required of the schema is 'xy'",
        ),
        (with_schema(parameters={"type": "object", "properties": {"x": {}}}), "'x' of the schema has no type"),
    ],
)
def test_a_broken_tool_is_caught(broken: Any, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_tool(broken)
    assert re.search(message, str(caught.value))


@pytest.mark.parametrize("forks", ["copy", "replay", "none"])
def test_every_state_of_a_good_tool_is_closed(forks: str) -> None:
    tool = Counts()
    tool.forks = forks
    check_tool(tool, examples=[{"x": 1}, {"x": 2}])
    assert tool.left_open == 0


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (SharesItsState(), "fork returned the state itself: return an independent copy"),
        (
            CopiesHalf(),
            "fork shares what the state holds: a fork, together and separately: no. 1 is ('ToolResult', '2'), or "
            "('ToolResult', '4'); copy everything",
        ),
        (OpensNothing(), "open returned None: return a state"),
        (CannotBeReplayed(), "; draw only from the seed that it is given"),
        (NeverCloses(), "lacks `async def close(state)`"),
    ],
)
def test_a_tool_whose_states_do_not_fork_is_caught(broken: Any, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_tool(broken, examples=[{"x": 1}, {"x": 2}])
    assert message in str(caught.value) and re.search(
        r"\(core/tests/testing/test_check_tool.py:\d+\)", str(caught.value)
    )


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


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (SaysNotHowItForks, "its attribute 'forks' is 'perhaps'; "),
        (PlainStart, "start"),
        (OddMetadata, "returned metadata {'seen': {1}}, which is not JSON: Object of type set "),
        (OnceAndShared, "schema.deterministic is True and schema.idempotent False"),
    ],
)
def test_what_is_wrong_with_the_optional_parts_is_named(broken: type, message: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        check_tool(broken())


def test_a_tool_is_started() -> None:
    check_tool(Started())


class Numbers:
    """A good set."""

    offers: tuple[Any, ...] = (Double, Started)

    def __init__(self) -> None:
        self.opened = False

    async def start(self, services: Services) -> None:
        self.folder = services.folder

    async def open(self) -> list[Tool]:
        assert self.folder.is_dir() and not self.opened
        self.opened = True
        names = ("double", "again")
        tools = [make() for make in self.offers]
        for tool, name in zip(tools, names, strict=True):
            tool.schema = replace(tool.schema, name=name)
        return tools

    async def aclose(self) -> None:
        assert self.opened
        self.opened = False


class SameNames(Numbers):
    async def open(self) -> list[Tool]:
        await super().open()
        return [Double(), Double()]


class Changes(Numbers):
    made = itertools.count()

    async def open(self) -> list[Tool]:
        return (await super().open())[: 1 + next(self.made) % 2]


class HasABrokenOne(Numbers):
    offers = (Double, CrashesOnWrong)


class PlainOpen(Numbers):
    def open(self) -> list[Tool]:  # type: ignore[override]
        return []


def test_a_good_tool_set_passes_and_is_closed() -> None:
    made: list[Numbers] = []

    def make() -> Numbers:
        made.append(Numbers())
        return made[-1]

    check_tool_set(make, examples={"again": [{"x": 3}]})
    assert [one.opened for one in made] == [False, False]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (SameNames, "has tools of the same name: double, double"),
        (Changes, "opened twice it had the tools"),
        (HasABrokenOne, "raise ToolError for the model's mistakes"),
        (PlainOpen, "open"),
    ],
)
def test_what_is_wrong_with_a_tool_set_is_named(broken: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        check_tool_set(broken)


def test_examples_are_for_tools_of_the_set() -> None:
    with pytest.raises(AssertionError) as caught:
        check_tool_set(Numbers, examples={"triple": [{"x": 1}]})
    assert str(caught.value).startswith("examples are given for triple, which the set does not have (core/tests/")


def test_a_tool_that_blocks_the_event_loop_is_caught() -> None:
    class Blocks:
        schema = echo_tool("echo").schema

        async def __call__(self, call: ToolCall) -> ToolResult:
            if not isinstance(call.arguments.get("text"), str):
                raise ToolError("text must be a string")
            time.sleep(0.8)
            return ToolResult(text="1")

    with pytest.raises(AssertionError, match=r"^blocks the event loop .* in __call__ \(core/tests/testing/"):
        check_tool(Blocks())


def test_a_bug_of_a_function_is_told_though_a_run_would_give_its_text_to_the_model() -> None:
    def shout(text: str) -> str:
        """Shout."""
        return text if text == "1" else text.uper()  # type: ignore[attr-defined,no-any-return]

    line = f"core/tests/testing/test_check_tool.py:{shout.__code__.co_firstlineno + 2}"
    with pytest.raises(AssertionError, match=f"crashed with AttributeError: .* \\({re.escape(line)}\\), called with"):
        check_tool(function_tool(shout))
