"""The tool `python`: one program in, its output out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, Literal, Self, TypeVar

from ramet import ConfigError, Services, Task, ToolCall, ToolError, ToolResult, ToolSchema
from ramet.helpers import PerLoop
from ramet_tools_python.config import KEYS, PythonConfig, check
from ramet_tools_python.isolation import Isolation
from ramet_tools_python.kept_states import KeptState, KeptStates
from ramet_tools_python.result import PythonResult, Status
from ramet_tools_python.sandbox import Sandbox

SCHEMA = ToolSchema(
    name="python",
    description=(
        "Runs a Python program and returns what it prints. If the last line is an expression, its value is printed "
        "too. Every call starts afresh: nothing is kept from earlier calls."
    ),
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "the program"}},
        "required": ["code"],
    },
)
KEEPING_SCHEMA = replace(
    SCHEMA,
    description=(
        "Runs a Python program and returns what it prints. If the last line is an expression, its value is printed "
        "too. Variables, functions and imports are kept for your next calls; files are not."
    ),
    idempotent=False,
)
P = TypeVar("P", Sandbox, KeptStates)


class _Interpreter(Generic[P]):
    """Starts its processes with the first call; may be made before any event loop runs, and pickled."""

    _pool_class: type[P]
    state: str

    def __init__(self, config: PythonConfig | None = None) -> None:
        self.config: PythonConfig = PythonConfig(state=self.state) if config is None else config
        check(self.config)
        if self.config.state != self.state:
            other = PythonTool if self.state == "rollout" else KeepingPythonTool
            raise ConfigError(
                f"{KEYS}.state is {self.config.state!r}; allowed for {type(self).__name__}: {self.state}; "
                f"{other.__name__} is the class for {other.state}"
            )
        self._pool: PerLoop[P] = PerLoop(lambda: self._pool_class(self.config), self._pool_class.abandon)

    def __reduce__(self) -> tuple[type[Self], tuple[PythonConfig]]:
        return type(self), (self.config,)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def start(self, services: Services) -> None:
        """Start, and write the level to the run.

        Raises `ConfigError` if this host cannot isolate as the options ask.
        """
        (await self.isolation()).record(services.folder)

    async def isolation(self) -> Isolation:
        """The isolation in force here. Starts the interpreter if need be; raises as `start`."""
        return await self._pool.get().start()

    async def aclose(self) -> None:
        await self._pool.aclose()


class PythonTool(_Interpreter[Sandbox]):
    """Python without a memory: nothing is kept between calls."""

    schema = SCHEMA
    state = "call"
    _pool_class = Sandbox

    async def run(self, code: str) -> PythonResult:
        """Run one program. Raises `InfraError` if our side failed."""
        return await self._pool.get().run(code)

    async def __call__(self, call: ToolCall) -> ToolResult:
        return _as_tool_result(await self.run(_code(call)))


class KeepingPythonTool(_Interpreter[KeptStates]):
    """Keeps variables between the calls of a rollout; a fork begins with a copy from its fork point."""

    schema = KEEPING_SCHEMA
    state = "rollout"
    forks: Literal["copy", "replay", "none"] = "copy"
    _pool_class = KeptStates

    async def open(self, task: Task | None = None, seed: int = 0) -> KeptState:
        return await self._pool.get().open()

    async def fork(self, state: KeptState) -> KeptState:
        return await self._pool.get().fork(state)

    async def close(self, state: KeptState) -> None:
        await self._pool.get().close_state(state)

    async def run(self, code: str, state: KeptState) -> PythonResult:
        """Run one program with the variables of `state`. Raises `InfraError` if our side failed."""
        return await self._pool.get().run(state, code)

    async def __call__(self, call: ToolCall) -> ToolResult:
        code = _code(call)
        if call.state is not None:
            return _as_tool_result(await self.run(code, call.state))
        state = await self.open()  # called outside a rollout: variables that no later call can reach
        try:
            return _as_tool_result(await self.run(code, state))
        finally:
            await self.close(state)


def python_tool(config: PythonConfig) -> PythonTool | KeepingPythonTool:
    """The tool for these options. Raises `ConfigError`."""
    return KeepingPythonTool(config) if config.state == "rollout" else PythonTool(config)


def _as_tool_result(result: PythonResult) -> ToolResult:
    metadata: dict[str, Any] = {
        "status": str(result.status),
        "rc": result.rc,
        "wall_ms": result.wall_ms,
        "cpu_ms": result.cpu_ms,
        "queue_ms": result.queue_ms,
        "level": result.level,
    }
    return ToolResult(text=result.text, error=result.status is not Status.OK, metadata=metadata)


def _code(call: ToolCall) -> str:
    code = call.arguments.get("code")
    if not isinstance(code, str) or len(call.arguments) != 1:
        raise ToolError(f"python takes one argument, code, a string; got {dict(call.arguments)!r:.200}")
    return code
