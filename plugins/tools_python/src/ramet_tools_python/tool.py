"""The tool `python`: one program in, its output out. Nothing is kept between calls."""

from __future__ import annotations

import asyncio
import os

from ramet import ToolCall, ToolError, ToolResult, ToolSchema
from ramet_tools_python.config import PythonConfig, check
from ramet_tools_python.result import Status
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


class PythonTool:
    """Starts its interpreter with the first call; may be made before any event loop runs, and pickled."""

    schema = SCHEMA

    def __init__(self, config: PythonConfig) -> None:
        check(config)
        self.config = config
        self._sandbox: Sandbox | None = None
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None  # process and loop that the sandbox belongs to

    def __reduce__(self) -> tuple[type[PythonTool], tuple[PythonConfig]]:
        return PythonTool, (self.config,)

    async def __call__(self, call: ToolCall) -> ToolResult:
        result = await self._own_sandbox().run(_code(call))
        return ToolResult(
            text=result.text,
            error=result.status is not Status.OK,
            metadata={
                "status": str(result.status),
                "rc": result.rc,
                "wall_ms": result.wall_ms,
                "cpu_ms": result.cpu_ms,
                "queue_ms": result.queue_ms,
                "level": result.level,
            },
        )

    async def aclose(self) -> None:
        if self._sandbox is not None:
            sandbox, self._sandbox = self._own_sandbox(), None
            await sandbox.close()

    def _own_sandbox(self) -> Sandbox:
        """The sandbox of this process and loop: sockets must not be shared with a forked process or a closed loop."""
        owner = (os.getpid(), asyncio.get_running_loop())
        if self._sandbox is not None and owner != self._owner:
            self._sandbox.abandon()
            self._sandbox = None
        if self._sandbox is None:
            self._sandbox, self._owner = Sandbox(self.config), owner
        return self._sandbox


def _code(call: ToolCall) -> str:
    code = call.arguments.get("code")
    if not isinstance(code, str) or len(call.arguments) != 1:
        raise ToolError(f"python takes one argument, code, a string; got {dict(call.arguments)!r:.200}")
    return code
