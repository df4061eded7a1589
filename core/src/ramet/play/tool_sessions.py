"""Calls of tools without a model: with the settings of a run, and in sessions, as a rollout has its own states.

Without a model (`model.path`) nothing can be counted in tokens, so results are then not cut.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ramet.components.services import RunServices
from ramet.components.toolbox import Toolbox, ToolNames, open_tools
from ramet.config.catalog import suggest
from ramet.config.schema import Config
from ramet.data.layout import ABSENT, Columns, answer_column, value_at
from ramet.data.rows import BadRow, make_task
from ramet.errors import ConfigError, raise_all
from ramet.io.json_rows import as_row
from ramet.rollout.agents.command import task_fields
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.jobs import expanded
from ramet.rollout.keys import RolloutKey
from ramet.rollout.stateful import tool_components
from ramet.rollout.states import States
from ramet.rollout.tools.runner import CallEnd, ToolRunner
from ramet.rollout.tree import LiveRollout, TurnRecord
from ramet.rollout.watchdog import Watchdog
from ramet.types import Task, ToolCall, ToolSchema, user_prompt
from ramet.types.task import FROM_ROW

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

UNLIMITED = 1 << 40
NO_TASK = Task(id="call", prompt=user_prompt(""))
NO_ANSWER = "(no answer)"  # a column


def read_task(path: Path, config: Config) -> Task:
    """The task of a file with one JSON object: what an agent gets (`task_fields`), or the columns of a data file, of
    which the answer may be missing. Raises `ConfigError`.
    """
    row = as_row(1, _json(path))
    is_agents = row.values.keys() == task_fields(NO_TASK).keys() and isinstance(row.values["metadata"], dict)
    columns = Columns() if is_agents else Columns.of(config.data.columns)
    values = {"prompt": row.values["prompt"]} if is_agents else row.values
    has_answer = value_at(values, answer_column(values, columns)) is not ABSENT
    if not has_answer:
        values, columns = {**values, NO_ANSWER: "none"}, replace(columns, answer=NO_ANSWER)
    try:
        task = make_task(replace(row, values=values), path.stem, path.stem, columns)
    except BadRow as error:
        raise ConfigError(f"--task={path}: {error}") from error
    if is_agents:
        fields = {name: row.values[name] for name in ("id", "data_source", "metadata")}
        return replace(task, **fields, answer=())
    return task if has_answer else replace(task, answer=())


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"--task={path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--task={path}: not a JSON object: {error}") from error


class NoTokens:
    """Stands in for an `Encoder` without a model: nothing is counted, so nothing is cut."""

    def untrusted(self, text: str) -> list[int]:
        return []


def _encoder(config: Config) -> Encoder | None:
    """Return the model's encoder; None without a model. Imports transformers only for a model: it takes seconds."""
    if not config.model.path:
        return None
    from ramet.models.check import has_tokenizer
    from ramet.models.loading import build_encoder

    return build_encoder(config) if has_tokenizer(config.model) else None


class ToolSessions:
    """The tools that one task may use, and the sessions that call them. `schemas`: of those tools, by name."""

    def __init__(self, config: Config, box: Toolbox, task: Task, names: Sequence[str]) -> None:
        """`names`: the tools and sets that are offered; empty: all. Raises `ConfigError` for others."""
        self.task = task
        self.seed = config.run.seed
        self.watchdog = Watchdog()
        self.schemas = _offered(box, task, names)
        described = task.schemas is not None
        used = [FROM_ROW] if described else [*self.schemas]
        tools = {name: box.tools[name] for name in used}
        encoder = _encoder(config)
        if encoder is None:
            encoder = cast("Encoder", NoTokens())
            tools = {
                name: (tool, replace(limits, max_result_tokens=UNLIMITED)) for name, (tool, limits) in tools.items()
            }
        runners = {name: ToolRunner(name, *pair, encoder, self.watchdog) for name, pair in tools.items()}
        self.runners = dict.fromkeys(self.schemas, runners[FROM_ROW]) if described else runners
        self.stateful = tool_components(tools)
        self._numbers = count()
        self._open = set[ToolSession]()

    def open(self) -> ToolSession:
        session = ToolSession(self, next(self._numbers))
        self._open.add(session)
        return session

    async def end(self, session: ToolSession) -> None:
        """Close the session's states. Never raises; a session whose end was cancelled is ended by `close`."""
        await session.close()
        self._open.discard(session)

    async def close(self) -> None:
        """End all sessions. Never raises."""
        for session in list(self._open):
            await self.end(session)


class ToolSession:
    """The calls of one agent. It has a separate state of each tool that has one, opened by the first call."""

    def __init__(self, sessions: ToolSessions, number: int) -> None:
        self._sessions = sessions
        key = RolloutKey("tool", 0, sessions.task.id, str(number))
        self._live = LiveRollout(
            key=key, path=(number,), segments=[], token_ids=array("i"), n_prompt_tokens=0, turns=[TurnRecord(0)]
        )
        self._states = States(
            sessions.stateful,
            task=sessions.task,
            seed=sessions.seed,
            policy=NoBranching(),
            budget_left=lambda: 0,
            replay=_no_replay,
            watchdog=sessions.watchdog,
        )
        self._states.begin(self._live)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallEnd:
        """Call a tool of `ToolSessions.schemas`. Calls of tools with one state run in their order.

        Raises `StateFailed`, `PluginError` and `ConfigError`.
        """
        sessions, live, states = self._sessions, self._live, self._states
        has_state = name in states
        async with states.in_order(live, name) if has_state else nullcontext():
            call = ToolCall(
                name=name,
                arguments=arguments,
                rollout=live.key.text,
                task=sessions.task,
                state=await states.use(live, name) if has_state else None,
            )
            return await sessions.runners[name].run(call)

    async def close(self) -> None:
        """Close the states. Never raises."""
        await self._states.close()


async def _no_replay(*_: object) -> None:
    raise AssertionError("a session is not forked")


def _offered(box: Toolbox, task: Task, names: Sequence[str]) -> dict[str, ToolSchema]:
    """The schemas of the tools that the task may use and that are named. Raises `ConfigError`."""
    configured = ToolNames(schemas=box.schemas, sets=box.set_schemas)
    raise_all(configured.unanswered([task]))
    usable = {schema.name: schema for schema in configured.of(task)}
    for name in names:
        if name not in usable and name not in box.sets:
            whose = "configured" if task is NO_TASK else "the task may use"
            close = suggest(name, usable)
            raise ConfigError(
                f"tool: no tool {name!r}; {whose}: {', '.join(usable) or 'none'}{'.' if close else ''}{close}"
            )
    offered = [name for name in expanded(names, box.sets) if name in usable] if names else usable
    if not offered:
        raise ConfigError(f"tool: no tool to offer; configured: {', '.join(configured.all) or 'none'}")
    return {name: usable[name] for name in offered}


@asynccontextmanager
async def open_sessions(config: Config, task: Task, names: Sequence[str] = ()) -> AsyncIterator[ToolSessions]:
    """Open the configured tools for a block; they and all sessions are closed at its end.

    Raises `ConfigError` for a tool that is not configured, and what opening the tools raises.
    """
    with tempfile.TemporaryDirectory(prefix="ramet-tool-") as folder:
        box = await open_tools(config, RunServices(folder=Path(folder), seed=config.run.seed))
        try:
            sessions = ToolSessions(config, box, task, names)
            try:
                yield sessions
            finally:
                await sessions.close()
        finally:
            await box.close()
