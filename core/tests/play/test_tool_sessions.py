"""Which tools a session offers, and the task that its calls are of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.config.compose import compose
from ramet.config.sections import without_model
from ramet.errors import ConfigError
from ramet.play.tool_sessions import NO_TASK, open_sessions, read_task
from ramet.rollout.agents.command import task_fields
from ramet.testing.doubles import echo_tool
from ramet.types import Message, Task, Tool, user_prompt


class Pair:
    """A set of two tools."""

    async def open(self) -> Sequence[Tool]:
        return [echo_tool("left"), echo_tool("right")]

    async def aclose(self) -> None:
        pass


@pytest.fixture(autouse=True)
def tools(register: Callable[..., None]) -> None:
    register("tools", "say", lambda: echo_tool("say"))
    register("tools", "pair", Pair)


def config(*overrides: str) -> Any:
    return compose(without_model(overrides), job="tool").config


def offered(names: Sequence[str], task: Task = NO_TASK) -> list[str]:
    async def main() -> list[str]:
        async with open_sessions(config("tools=[say,pair]"), task, names) as sessions:
            return list(sessions.schemas)

    return asyncio.run(main())


def test_names_are_of_tools_or_sets_and_the_task_may_use_fewer() -> None:
    assert offered([]) == ["say", "left", "right"]
    assert offered(["pair"]) == ["left", "right"]
    assert offered(["right", "say"]) == ["right", "say"]
    task = Task(id="t", prompt=user_prompt("q"), tools=("say", "left"))
    assert offered([], task) == ["say", "left"]
    assert offered(["pair"], task) == ["left"]
    with pytest.raises(
        ConfigError, match=r"^tool: no tool 'sya'; configured: say, left, right\. Did you mean 'say'\?$"
    ):
        offered(["sya"])
    with pytest.raises(ConfigError, match=r"^tool: no tool 'right'; the task may use: say, left$"):
        offered(["right"], task)


def test_a_task_may_describe_its_tools_whose_results_are_in_the_row(tmp_path: Path) -> None:
    add = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {}}}}
    row = {"prompt": "1+1?", "tools": [{"type": "function", "function": add}], "tool_results": {"add": "2"}}
    (tmp_path / "task.json").write_text(json.dumps(row, indent=1))
    settings = config("tools=[from_row]")
    task = read_task(tmp_path / "task.json", settings)
    assert (task.question, task.answer) == ("1+1?", ())

    async def main() -> None:
        async with open_sessions(settings, task) as sessions:
            assert [schema.description for schema in sessions.schemas.values()] == ["Adds."]
            end = await sessions.open().call("add", {"a": 1})
            assert (end.record.text, end.record.name, end.error) == ("2", "add", None)

    asyncio.run(main())
    with pytest.raises(ConfigError, match=r"tools=\[from_row\]"):
        offered([], task)


def test_an_agents_file_is_its_task_without_answers(tmp_path: Path) -> None:
    messages = (Message(role="system", content="Think."), Message(role="user", content="Why?"))
    task = Task(id="set/7", prompt=messages, answer=("42",), metadata={"level": 2, "prompt": "own"})
    (tmp_path / "task.json").write_text(json.dumps(task_fields(task)))
    assert read_task(tmp_path / "task.json", config("data.columns.prompt=q")) == replace(task, answer=())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "cannot be read"),
        ("[1]", "not a JSON object"),
        ("{", "not a JSON object"),
        ("{}", "column prompt"),
        ('{"prompt": "q", "answer": []}', "column answer"),
    ],
)
def test_a_task_that_cannot_be_read_is_named(text: str | None, what: str, tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=what) as error:
        read_task(path, config())
    assert str(error.value).startswith(f"--task={path}: ")
