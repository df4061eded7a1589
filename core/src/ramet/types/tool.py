"""Tools: a schema and an async call. Time-outs, retries, caps and metrics are the core's (`ramet.rollout.tools`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ramet.types.task import Task
from ramet.types.tool_schema import ToolSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call. A rollout step gives `name` and `arguments`; the core adds the rest.

    `rollout` is a key that is unique within a step of training. `state` is what the tool's own `open` or `fork`
    returned for this rollout (`Stateful` tools; None otherwise), `environment` the state of the rollout step. A call of
    a tool with `deterministic=True` may be shared between tasks, so its `task` is None.
    """

    name: str
    arguments: Mapping[str, Any]
    rollout: str = ""
    turn: int = 0
    task: Task | None = None
    deadline_s: float | None = None  # seconds that this attempt has; the smaller of time-out and rollout's deadline
    state: Any = None
    environment: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a tool call. `error` True: the model caused it (its code raised); the text says what.

    `metadata` is JSON; it is recorded with the call (`ToolRecord.metadata`), and rewards can read it there.
    """

    text: str
    error: bool = False
    cached: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Tool(Protocol):
    """Hook 5. Raise `ToolError` for the model's mistake. `InfraError` and any other exception mask the rollout.

    Optional: the members of `Stateful` for state that belongs to one rollout. Tools of a set that share one state have
    the attribute `state_owner` instead, the same `Stateful` in each. Optional too:
    `async def start(self, services: Services) -> None` before the first call, and `async def aclose(self) -> None` for
    the end of the run.
    """

    schema: ToolSchema

    async def __call__(self, call: ToolCall) -> ToolResult: ...


class ToolSet(Protocol):
    """Several tools from one entry of the configuration (an MCP server, say). A factory of hook 5 may return one.

    Opened once before a run starts, for the schemas, and again by each rollout worker; the schemas must be equal each
    time. `Task.tools` and limits may name the set, which means all its tools. Optional: `start`, as for tools.
    """

    async def open(self) -> Sequence[Tool]:
        """Connect. Tools in a fixed order, names unique. Raises `InfraError` if the server cannot be reached."""
        ...

    async def aclose(self) -> None: ...
