"""Running programs through the tool in a loop of its own, and looking at what is left behind."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet import ToolCall, ToolResult
from ramet_tools_python.config import PythonConfig
from ramet_tools_python.tool import PythonTool


class Bench:
    """Runs programs; every session has its own tool and closes it."""

    def session(self, steps: Callable[[PythonTool], Awaitable[Any]], **options: Any) -> Any:
        options.setdefault("preload", [])  # importing sympy takes long, and few tests need it

        async def run() -> Any:
            tool = PythonTool(PythonConfig(**options))
            try:
                return await steps(tool)
            finally:
                await tool.aclose()

        return asyncio.run(run())

    def results(self, *programs: str, **options: Any) -> list[ToolResult]:
        """Of programs that run one after the other."""

        async def steps(tool: PythonTool) -> list[ToolResult]:
            return [await self.call(tool, program) for program in programs]

        found: list[ToolResult] = self.session(steps, **options)
        return found

    def text(self, program: str, **options: Any) -> str:
        return self.results(program, **options)[0].text

    @staticmethod
    async def call(tool: PythonTool, code: str) -> ToolResult:
        return await tool(ToolCall(name="python", arguments={"code": code}))

    @staticmethod
    def descendants(root: int) -> set[int]:
        """Processes below `root`, itself left out."""
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(stat.parent.name)] = int(fields[1])
        found: set[int] = set()
        level = {root}
        while level:
            level = {pid for pid, parent in parents.items() if parent in level}
            found |= level
        return found

    @staticmethod
    def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.02)
        return condition()

    @staticmethod
    def exists(pid: int) -> bool:
        """A process that ends while it is read raises what /proc raises then: it does not exist."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: removing thousands of directories takes long on some disks."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


@pytest.fixture
def bench() -> Bench:
    return Bench()
