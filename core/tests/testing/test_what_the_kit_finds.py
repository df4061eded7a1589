"""The kit finds what a run never shows, ends what hangs, and says what it could not exercise."""

from __future__ import annotations

import asyncio
import functools
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import pytest

import ramet.testing
import ramet.testing.plugin as kit
from ramet import (
    AgentContext,
    AgentResult,
    BranchAction,
    Insert,
    Markup,
    Register,
    RolloutState,
    Sampled,
    StartRoots,
    StepContext,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    ToolError,
    ToolResult,
    ToolSchema,
    TracePart,
    Untrusted,
    hookimpl,
    per_rollout,
)
from ramet.plugins import load_from, load_plugins
from ramet.plugins.sources import Source
from ramet.testing import check_branch_policy, check_plugin, check_rollout_step, check_tool
from ramet.testing import checked as limits


class Table:
    """An environment on a database in memory: the policy writes SQL, and `begin` shows what there is."""

    forks = "copy"

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return "Write SQL."

    async def open(self, task: Task, seed: int) -> sqlite3.Connection:
        made = sqlite3.connect(":memory:", isolation_level=None)
        made.execute("CREATE TABLE t (n)")
        made.execute("INSERT INTO t VALUES (1)")
        return made

    async def fork(self, state: sqlite3.Connection) -> sqlite3.Connection:
        copy = sqlite3.connect(":memory:", isolation_level=None)
        state.backup(copy)
        return copy

    async def close(self, state: sqlite3.Connection) -> None:
        state.close()

    async def begin(self, state: sqlite3.Connection) -> Sequence[Insert]:
        return [Untrusted(text="t(n)\n")]

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        said = await ctx.generate(stop=[";"])
        if said.stop is None:
            return StepResult(stop=StopReason.END, reward=0.0)
        return StepResult(insert=(Markup(text="\n"), Untrusted(text=self.run(state.environment, said.text))))

    def run(self, database: sqlite3.Connection, sql: str) -> str:
        try:
            return f"{database.execute(sql.strip()).fetchall()}"
        except (sqlite3.Error, sqlite3.Warning) as error:
            return f"error: {error}"


@dataclass
class Session:
    database: sqlite3.Connection


class SharedTable(Table):
    """Its fork copies the object around the connection, which both then use."""

    async def open(self, task: Task, seed: int) -> Any:
        return Session(await super().open(task, seed))

    async def fork(self, state: Any) -> Any:
        return replace(state)

    async def close(self, state: Any) -> None:
        """The connection is left to the garbage collector: the other one may use it."""

    def run(self, database: Any, sql: str) -> str:
        return super().run(database.database, sql)


SQL = ["SELECT n FROM t;", "UPDATE t SET n = 4;", "UPDATE t SET n = 6;"]


def test_a_good_environment_that_its_replies_exercise_passes() -> None:
    check_rollout_step(Table(), replies=SQL)


def test_a_fork_that_shares_its_database_is_found_also_where_the_replies_write_before_they_read() -> None:
    with pytest.raises(AssertionError, match=r"^fork shares "):
        check_rollout_step(SharedTable(), replies=SQL)


@pytest.mark.parametrize("replies", [(), ["SELECT n FROM t;", "SELECT n FROM t;"]])
@pytest.mark.parametrize("step", [Table, SharedTable])
def test_replies_that_exercise_no_fork_are_no_pass(step: type[Table], replies: Sequence[str]) -> None:
    with pytest.raises(AssertionError, match=r"no fork was exercised: .*; give replies that change the state and show"):
        check_rollout_step(step(), replies=replies)


class ShownTable(Table):
    """It says in the end how much there is."""

    async def finish(self, state: sqlite3.Connection, stop: StopReason) -> StepResult:
        return StepResult(info={"n": len(self.run(state, "SELECT n FROM t"))})


def test_an_environment_that_the_first_reply_ends_is_not_accused_of_sharing() -> None:
    with pytest.raises(AssertionError, match=r"^no fork was exercised: "):
        check_rollout_step(ShownTable())
    check_rollout_step(ShownTable(), replies=SQL)


class ReadsNothing(Table):
    def read(self, text: str, tools: Sequence[str]) -> Sequence[TracePart]:
        return []

    def result(self, text: str) -> Sequence[Insert]:
        return [Untrusted(text=text)]


class TrainsObservations(ReadsNothing):
    def read(self, text: str, tools: Sequence[str]) -> Sequence[TracePart]:
        return [Sampled(text=text)]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (ReadsNothing, "^read returned parts that do not join to the text: of 't"),
        (TrainsObservations, "what is inserted must not be trained"),
    ],
)
def test_a_game_that_reads_traces_wrongly_is_found(step: type[Table], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_rollout_step(step(), replies=SQL)


class Blocks(Table):
    def run(self, database: sqlite3.Connection, sql: str) -> str:
        time.sleep(0.6)
        return super().run(database, sql)


class CountsOnItself(Table):
    n = 0

    def run(self, database: sqlite3.Connection, sql: str) -> str:
        self.n += 1
        return str(self.n)


class Leaks:
    """Calls no tool, and keeps what the last rollout wrote."""

    before = ""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return "Answer."

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        said, before = (await ctx.generate()).text, self.before
        self.before = said
        return StepResult(stop=StopReason.ANSWER, answer=f"{before} {said}")


class Mute(Leaks):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        return StepResult(stop=StopReason.END)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Blocks(), r"blocks the event loop for \d\.\d s in run \(core/tests/testing/.*: await run_blocking"),
        (CountsOnItself(), "two rollouts .* went two ways"),
        (Leaks(), "the same rollout, run twice, went two ways: the step keeps something between rollouts"),
        (Mute(), "never calls ctx.generate: no token is sampled, so there is nothing to train"),
    ],
)
def test_what_a_step_without_tools_does_wrong_is_found(step: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_rollout_step(step, replies=SQL if isinstance(step, Table) else ())


class Notes:
    """A tool with commands, which no argument made from its schema is."""

    schema = ToolSchema(
        name="notes",
        description="add TEXT, or list",
        parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    )
    forks = "copy"

    async def open(self, task: Task, seed: int) -> dict[str, list[str]]:
        return {"notes": []}

    async def fork(self, state: dict[str, list[str]]) -> dict[str, list[str]]:
        return {"notes": list(state["notes"])}

    async def close(self, state: Any) -> None: ...

    async def __call__(self, call: ToolCall) -> ToolResult:
        command = call.arguments.get("command")
        if not isinstance(command, str) or command.partition(" ")[0] not in ("add", "list"):
            raise ToolError("add TEXT, or list")
        if command != "list":
            call.state["notes"].append(command[4:])
        return ToolResult(text=", ".join(call.state["notes"]) or "none")


class Cancels(Notes):
    async def __call__(self, call: ToolCall) -> ToolResult:
        raise asyncio.CancelledError


def test_a_tool_that_cancels_itself_is_named() -> None:
    with pytest.raises(AssertionError, match=r"crashed with CancelledError: .*test_what_the_kit_finds.py:\d+\)"):
        check_tool(Cancels())


class Pads(Notes):
    """Pads by name; `new` begins one again, so that a fork that makes it shares nothing any more."""

    async def open(self, task: Task, seed: int) -> dict[str, list[str]]:
        return {}

    async def fork(self, state: dict[str, list[str]]) -> dict[str, list[str]]:
        return {name: list(pad) for name, pad in state.items()}

    async def __call__(self, call: ToolCall) -> ToolResult:
        match str(call.arguments.get("command")).split():
            case ["new", pad]:
                call.state[pad] = []
            case ["add", pad, word] if pad in call.state:
                call.state[pad].append(word)
            case ["list", pad] if pad in call.state:
                return ToolResult(text=" ".join(call.state[pad]))
            case _:
                raise ToolError("new PAD, add PAD WORD, or list PAD")
        return ToolResult(text="done")


class SharedPads(Pads):
    async def fork(self, state: dict[str, list[str]]) -> dict[str, list[str]]:
        return dict(state)


def test_a_tool_is_forked_after_each_of_its_examples() -> None:
    examples = [{"command": command} for command in ("new a", "add a x", "list a")]
    check_tool(Pads(), examples=examples)
    with pytest.raises(AssertionError, match=r"^fork shares .* 'x x'\), or .* 'x'\); copy"):
        check_tool(SharedPads(), examples=examples)


class SharedNotes(Notes):
    async def fork(self, state: dict[str, list[str]]) -> dict[str, list[str]]:
        return dict(state)


NOTES = {"tools.notes": [{"command": "add a"}, {"command": "list"}]}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`plugin(tools={"name": factory}, …)` is what `mine` registers."""

    def offer(config: type[Any] | None = None, **hooks: dict[str, Any]) -> None:
        module = ModuleType("mine")
        module.ramet_contract = "1"  # type: ignore[attr-defined]
        for kind, factories in hooks.items():

            @hookimpl
            def hook(register: Register[Any], factories: dict[str, Any] = factories) -> None:
                for name, factory in factories.items():
                    register(name, factory, config=config)

            setattr(module, f"register_{kind}", hook)
        sources = [Source("mine", "mine", "dist-mine", "1", lambda: module)]
        monkeypatch.setattr(kit, "load_plugins", functools.partial(load_from, sources))

    return offer


def test_examples_and_replies_are_given_by_name(plugin: Callable[..., None]) -> None:
    plugin(tools={"notes": Notes}, rollout_steps={"table": Table})
    both = ["rollout_step.table", "tools.notes"]
    assert check_plugin("mine", replies={"rollout_step.table": SQL}, examples=NOTES) == both
    with pytest.raises(AssertionError) as caught:
        check_plugin("mine", replies={"tools.notes": SQL}, examples={**NOTES, "tools.gone": []})
    problems = str(caught.value).splitlines()[1:]
    assert [problem.partition(":")[0] for problem in problems[:2]] == ["* rollout_step.table", "* tools.notes"]
    assert problems[2] == "* examples names 'tools.gone', which plugin 'mine' does not register"
    assert problems[3].startswith("* replies names 'tools.notes', ")


class Silent:
    """An agent that never asks the policy."""

    forks = "none"

    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        return AgentResult(answer="5")


def test_an_agent_is_given_replies_and_no_call(plugin: Callable[..., None]) -> None:
    plugin(rollout_steps={"silent": Silent})
    with pytest.raises(AssertionError, match="calls names an agent, which has tools of its own: give replies"):
        check_plugin("mine", calls={"rollout_step.silent": "x"})
    pytest.importorskip("aiohttp", reason="ramet[openai] is not installed")
    pytest.importorskip("transformers", reason="ramet[train] is not installed")
    with pytest.raises(AssertionError, match=r"rollout_step.silent: run never asks the policy"):
        check_plugin("mine", replies={"rollout_step.silent": ["4"]})


def test_a_tool_whose_calls_all_fail_is_no_pass_and_its_shared_list_is_found(plugin: Callable[..., None]) -> None:
    plugin(tools={"notes": SharedNotes})
    with pytest.raises(AssertionError, match=r"no call was exercised: .*'add TEXT, or list'.* give examples of calls"):
        check_plugin("mine")
    with pytest.raises(AssertionError, match=r"tools\.notes: fork shares"):
        check_plugin("mine", examples=NOTES)
    with pytest.raises(AssertionError, match=r"no fork was exercised: .*; give examples of calls that change"):
        check_plugin("mine", examples={"tools.notes": [{"command": "list"}]})


class Waits(Notes):
    async def __call__(self, call: ToolCall) -> ToolResult:
        await asyncio.Event().wait()
        return ToolResult(text="")


class Loops(Notes):
    async def __call__(self, call: ToolCall) -> ToolResult:
        while True:
            pass


class NeverOpens(Notes):
    async def open(self, task: Task, seed: int) -> Any:
        await asyncio.sleep(3600)


class TableNeverOpens(Table):
    async def open(self, task: Task, seed: int) -> Any:
        time.sleep(3600)


class Decides:
    def decide(self, event: Any, group: Any, rng: Any) -> list[BranchAction]:
        while True:
            StartRoots(n=1)


def never_built() -> Any:
    time.sleep(3600)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    load_plugins()  # importing them takes longer than that where the machine is busy
    monkeypatch.setattr(limits, "LIMIT_S", 0.3)
    monkeypatch.setattr(limits, "GRACE_S", 0.3)
    yield


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("check", "broken", "function"),
    [
        (check_tool, Waits(), "__call__"),
        (check_tool, Loops(), "__call__"),
        (check_tool, NeverOpens(), "open"),
        (check_rollout_step, TableNeverOpens(), "open"),
        (check_branch_policy, Decides(), "decide"),
    ],
)
def test_what_hangs_is_ended_and_its_line_named(check: Any, broken: Any, function: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check(broken)
    line = (
        rf"hangs in {function} \(core/tests/testing/test_what_the_kit_finds\.py:\d+\): no call has ended for 0\.3 s; "
    )
    assert re.match(line, str(caught.value))


def test_a_plugin_that_hangs_is_named_and_the_others_are_checked(plugin: Callable[..., None]) -> None:
    plugin(tools={"notes": never_built}, rewards={"one": lambda: per_rollout(lambda rollout: 1e39)})
    with pytest.raises(AssertionError) as caught:
        check_plugin("mine", limit_s=0.3)
    _, tool, reward = str(caught.value).splitlines()
    assert tool.startswith("* tools.notes: hangs in never_built (core/tests/testing/")
    assert "* rewards.one: scored the reply" in reward and "1e+39: give a number that fits float32" in reward


def test_a_message_is_cut_and_keeps_its_end() -> None:
    class Floods(Notes):
        async def __call__(self, call: ToolCall) -> ToolResult:
            return ToolResult(text="x" * 1_000_000)

    with pytest.raises(AssertionError) as caught:
        check_tool(Floods())
    assert len(str(caught.value)) < 2000 and "raise ToolError with a text" in str(caught.value)


@dataclass
class Server:
    urls: list[str] = field(default_factory=list)


@dataclass
class Nested:
    server: Server = field(default_factory=Server)


@dataclass
class Calls:
    how: Callable[[str], str] = str.strip


def test_options_are_those_of_a_run(plugin: Callable[..., None]) -> None:
    seen: list[Any] = []

    def build(options: Any) -> Any:
        seen.append(options)
        return per_rollout(lambda rollout: float(len(options.server.urls)))

    plugin(Nested, rewards={"judged": build})
    check_plugin("mine", options={"rewards.judged": {"server": {"urls": ["a", "b"]}}})
    assert seen == [Nested(server=Server(urls=["a", "b"]))]
    plugin(Calls, rewards={"judged": build})
    with pytest.raises(AssertionError, match=r"rewards.judged: cannot build .*: its options Calls cannot be typed:"):
        check_plugin("mine")


def test_a_plugin_without_hooks_is_no_pass(plugin: Callable[..., None]) -> None:
    plugin()
    with pytest.raises(AssertionError, match=r"\* it registers nothing: write a hook"):
        check_plugin("mine")


def test_the_names_of_the_package_are_what_dir_shows() -> None:
    assert dir(ramet.testing) == sorted(ramet.testing.__all__)
