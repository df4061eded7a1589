"""Tools as an MCP server, with clients of the official library: in this process, over pipes, over HTTP."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.config.compose import compose
from ramet.config.sections import without_model
from ramet.errors import ConfigError, InfraError, ToolError
from ramet.play.tool_sessions import NO_TASK, open_sessions
from ramet.rollout.config import McpConfig
from ramet.rollout.tools.mcp import McpServer
from ramet.testing.doubles import echo_tool
from ramet.types import Task, ToolCall, ToolResult, ToolSchema, user_prompt

mcp = pytest.importorskip("mcp", reason="ramet[mcp] is not installed")
tool_server, types = (importlib.import_module(name) for name in ("ramet.play.tool_server", "mcp_types"))
MODES = ("auto", "legacy")  # the protocol of 2026-07-28, and the one before it
PLUGIN = '''
"""Tools of these tests for a process of their own."""
from pathlib import Path
from ramet import InfraError, ToolResult, ToolSchema, function_tool, hookimpl

ramet_contract = "1"
print("a plugin that prints as it is imported")


def say(text: str) -> str:
    """Return the text."""
    print("and as it is called")
    if text == "down":
        raise InfraError("it is down")
    return text


class Counter:
    forks = "none"
    schema = ToolSchema(name="counter", description="Counts.", parameters={"type": "object", "properties": {}})

    async def open(self, task, seed):
        return [task.question, 0]

    async def close(self, state):
        with Path("closed").open("a") as file:
            file.write(f"{state[1]}\\n")

    async def __call__(self, call):
        call.state[1] += 1
        return ToolResult(text=f"{call.state[0]} {call.state[1]}")


@hookimpl
def register_tools(register):
    register("say", lambda: function_tool(say))
    register("counter", Counter)
'''


class Diary:
    """`Stateful` tool whose state is a list of what was written into it."""

    forks = "copy"
    schema = ToolSchema(
        name="diary",
        description="Keeps words.",
        parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        idempotent=False,
    )

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.opened: list[tuple[str, int]] = []
        self.closed: list[list[str]] = []

    async def open(self, task: Task, seed: int) -> list[str]:
        if self.error is not None:
            raise self.error
        self.opened.append((task.question, seed))
        return []

    async def fork(self, state: list[str]) -> list[str]:
        return [*state]

    async def close(self, state: list[str]) -> None:
        self.closed.append(state)

    async def __call__(self, call: ToolCall) -> ToolResult:
        words = [*call.state, call.arguments["word"]]
        await asyncio.sleep(0.01 if call.arguments["word"] == "slow" else 0)
        call.state[:] = words
        return ToolResult(text=" ".join(words))


@asynccontextmanager
async def connected(mode: str, *overrides: str, task: Task = NO_TASK) -> Any:
    """A client of a server in this process, for one session."""
    config = compose(without_model(overrides), job="tool").config
    async with open_sessions(config, task) as sessions:
        session = sessions.open()
        async with mcp.Client(tool_server.make_server(sessions, lambda _: session), mode=mode) as client:
            yield client


async def error_of(call: Any) -> tuple[int, str]:
    with pytest.raises(mcp.MCPError) as error:
        await call
    return error.value.code, error.value.message


@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_the_model_is_a_result_and_a_failure_is_an_error_that_says_so(
    mode: str, register: Callable[..., None]
) -> None:
    down = echo_tool("down", error=InfraError("it is down"))
    register("tools", "say", lambda: echo_tool("say"))
    register("tools", "refuses", lambda: echo_tool("refuses", error=ToolError("no such file")))
    register("tools", "down", lambda: down)
    register("tools", "broken", lambda: echo_tool("broken", error=KeyError("key")))

    async def main() -> None:
        retries = ("tools.down.retries=1", "tools.broken.retries=0")
        async with connected(mode, "tools=[say,refuses,down,broken]", *retries) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == ["say", "refuses", "down", "broken"]
            assert tools[0].input_schema == dict(echo_tool("say").schema.parameters)
            assert (tools[0].description, tools[0].annotations.idempotent_hint) == ("Returns its input.", True)

            async def text(name: str, **arguments: Any) -> tuple[str, bool]:
                result = await client.call_tool(name, arguments)
                return result.content[0].text, result.is_error

            assert await text("say", text="\x1b[2J hello") == ("\\x1b[2J hello", False)
            assert await text("say", word="hello") == (
                "say: text is missing; there is no word (known: text)",
                True,
            )
            assert await text("refuses", text="a") == ("no such file", True)
            code, message = await error_of(client.call_tool("down", {"text": "a"}))
            assert (code, message) == (types.INTERNAL_ERROR, "infrastructure failure: tool:down: it is down")
            assert len(down.calls) == 2, "the retry of the configuration"
            code, message = await error_of(client.call_tool("broken", {"text": "a"}))
            assert code == types.INTERNAL_ERROR
            assert message.startswith("the tool's own code failed: tool:broken: ") and "KeyError" in message
            assert await error_of(client.call_tool("sya", {})) == (
                types.INVALID_PARAMS,
                "There is no tool sya. Tools: say, refuses, down, broken.",
            )

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_session_has_one_state_which_its_calls_use_in_their_order(mode: str, register: Callable[..., None]) -> None:
    diary = Diary()
    register("tools", "diary", lambda: diary)
    task = Task(id="t", prompt=user_prompt("Why?"))

    async def main() -> None:
        async with connected(mode, "tools=[diary]", "run.seed=3", task=task) as client:
            assert not (await client.list_tools()).tools[0].annotations.idempotent_hint
            assert diary.opened == [], "only the first call opens a state"
            calls = [client.call_tool("diary", {"word": word}) for word in ("slow", "quick")]
            results = await asyncio.gather(*calls)
            assert [result.content[0].text for result in results] == ["slow", "slow quick"]
            assert diary.closed == []
        assert diary.closed == [["slow", "quick"]]

    asyncio.run(main())
    assert [question for question, _ in diary.opened] == ["Why?"]


def test_a_state_that_cannot_be_opened_is_an_infrastructure_failure(register: Callable[..., None]) -> None:
    register("tools", "diary", lambda: Diary(InfraError("no room")))

    async def main() -> None:
        async with connected("auto", "tools=[diary]") as client:
            code, message = await error_of(client.call_tool("diary", {"word": "a"}))
            assert code == types.INTERNAL_ERROR
            assert message.startswith("infrastructure failure: state:diary: open raised InfraError: no room")

    asyncio.run(main())


def test_sessions_have_states_and_seeds_of_their_own(register: Callable[..., None]) -> None:
    diary = Diary()
    register("tools", "diary", lambda: diary)

    async def main() -> None:
        config = compose(without_model(["tools=[diary]"]), job="tool").config
        async with open_sessions(config, NO_TASK) as sessions:
            first, second = sessions.open(), sessions.open()
            for session in (first, second, first):
                await session.call("diary", {"word": "a"})
            await sessions.end(first)
            assert diary.closed == [["a", "a"]]
        assert diary.closed == [["a", "a"], ["a"]]
        seeds = [seed for _, seed in diary.opened]
        assert len(set(seeds)) == 2

    asyncio.run(main())


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "own_tools.py").write_text(PLUGIN)
    (tmp_path / "task.json").write_text('{"prompt": "Why?"}')
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "RAMET_PLUGINS": "own_tools"}


@contextmanager
def serving(environ: dict[str, str], folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ramet", "tool", "serve", *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environ, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def message(method: str, number: int | None = None, **params: Any) -> str:
    fields = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(fields if number is None else fields | {"id": number}) + "\n"


def test_only_the_protocol_is_written_to_the_standard_output_and_a_signal_closes_the_states(
    environ: dict[str, str], tmp_path: Path
) -> None:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    with serving(environ, tmp_path, "say", "counter", "--task", "task.json") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(
            message("initialize", 1, **client)
            + message("notifications/initialized")
            + "no message\n"
            + message("tools/call", 2, name="say", arguments={"text": "half a character: \ud83d"})
        )
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert answers[0]["result"]["serverInfo"]["name"] == "ramet"
        assert answers[1]["result"]["content"][0]["text"] == "half a character: ?"
        process.stdin.write(message("tools/call", 3, name="counter"))
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["content"][0]["text"] == "Why? 1"
        process.send_signal(signal.SIGTERM)
        rest, said = process.communicate(timeout=60)
        assert (process.returncode, rest) == (0, "")
        assert said.count("a plugin that prints as it is imported") == said.count("and as it is called") == 1
    assert (tmp_path / "closed").read_text() == "1\n"


def test_ramets_own_client_has_a_state_for_each_rollout_over_http(environ: dict[str, str], tmp_path: Path) -> None:
    with serving(environ, tmp_path, "say", "counter", "tools.say.retries=0", "--http", "0") as process:
        assert process.stdout is not None
        lines = dict(
            line.rstrip().split(": ", 1) for line in (process.stdout.readline() for _ in range(3)) if ": " in line
        )
        url = lines["address"]
        assert url.startswith("http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(url, b"{}"))
        asyncio.run(
            _use_over_http(McpConfig(url=url, headers={"Authorization": f"Bearer {lines['key']}"}, state="own"))
        )
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert sorted((tmp_path / "closed").read_text().split()) == ["1", "2"]


async def _use_over_http(config: McpConfig) -> None:
    server = McpServer(config)
    try:
        tools = {tool.schema.name: tool for tool in await server.open()}
        call = ToolCall(name="", arguments={})
        owner = tools["counter"].state_owner
        first, second = [await owner.open(NO_TASK, 1) for _ in range(2)]
        texts = [(await tools["counter"](replace(call, state=state))).text for state in (first, second, first)]
        assert texts == [" 1", " 1", " 2"]
        refused = await tools["say"](replace(call, state=first))
        assert (refused.text, refused.error) == ("say: text is missing", True)
        with pytest.raises(InfraError, match="infrastructure failure: tool:say: it is down"):
            await tools["say"](replace(call, state=first, arguments={"text": "down"}))
        for state in (first, second):
            await owner.close(state)
    finally:
        await server.aclose()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8080", ("127.0.0.1", 8080)),
        (":0", ("127.0.0.1", 0)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:80", ("::1", 80)),
        ("::1", None),
        ("localhost:", None),
        ("localhost:70000", None),
    ],
)
def test_an_address_without_a_host_is_the_loopback(text: str, address: tuple[str, int] | None) -> None:
    if address is None:
        with pytest.raises(ConfigError, match="--http="):
            tool_server.Address.read(text)
    else:
        assert tool_server.Address.read(text) == address
