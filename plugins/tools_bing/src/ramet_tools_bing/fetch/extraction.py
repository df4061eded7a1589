"""The processes that turn pages into text: started when they are needed, replaced when they fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass

from ramet import InfraError, ToolError
from ramet_tools_bing.fetch import extractor
from ramet_tools_bing.fetch.download import Download

START_S = 60.0  # for the imports of a process on a busy machine
PAGE_S = 10.0  # for one page; more is a parser that hangs
GRACE_S = 2.0  # after which a process that has not ended itself is ended
PAGES = 500  # after which a process is replaced: parsers leak
LARGEST_ANSWER = 64 << 20
ENVIRONMENT = {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}  # nothing of ours: no key is there to be read


@dataclass(frozen=True, slots=True, kw_only=True)
class PageText:
    """`url` is where the last redirect led."""

    url: str
    title: str
    text: str


class ExtractorLostError(Exception):
    """The process ended, or had to be ended."""


class _Extractor:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pages = 0

    @classmethod
    async def start(cls) -> _Extractor:
        """Ready for pages. Raises `InfraError`."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", extractor.__file__, json.dumps(sys.path),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env=ENVIRONMENT, cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise InfraError(f"fetch: no process for reading pages can be started: {error}") from error
        one = cls(process)
        try:
            reason = (await one._answer(START_S)).get("error")
        except BaseException as error:
            await asyncio.shield(one.stop())
            if isinstance(error, ExtractorLostError):
                raise InfraError(f"fetch: a process for reading pages ended at its start ({error})") from error
            raise
        if reason is not None:
            await one.stop()
            raise InfraError(f"fetch: a process for reading pages cannot work: {reason}")
        return one

    async def extract(self, message: bytes, timeout_s: float) -> dict[str, str]:
        """Raises `ExtractorLostError`."""
        assert self._process.stdin is not None
        self._process.stdin.write(len(message).to_bytes(4, "big") + message)
        answer = await self._answer(timeout_s)
        self.pages += 1
        return answer

    async def _answer(self, timeout_s: float) -> dict[str, str]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                size = int.from_bytes(await self._process.stdout.readexactly(4), "big")
                if size > LARGEST_ANSWER:
                    raise ExtractorLostError("an answer that is too large")
                return dict(json.loads(await self._process.stdout.readexactly(size)))
        except (TimeoutError, OSError, EOFError, ValueError) as error:
            raise ExtractorLostError(type(error).__name__) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    async def stop(self) -> None:
        if self._process.returncode is None:  # `Process.kill` would reap it, and asyncio miss its end
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()


class ExtractorPool:
    """At most `size` processes, for one event loop."""

    def __init__(self, size: int, page_s: float = PAGE_S) -> None:
        self.page_s = page_s
        self._places = asyncio.Semaphore(size)
        self._idle: list[_Extractor] = []
        self._busy: set[_Extractor] = set()

    @property
    def pids(self) -> list[int]:
        """Of the processes that wait for work."""
        return [one.pid for one in self._idle]

    async def text(self, page: Download, chars: int) -> PageText:
        """Raises `ToolError` for a page that cannot be read, `InfraError` if no process can be started."""
        header = {"kind": page.kind, "url": page.url, "charset": page.charset, "chars": chars, "timeout_s": self.page_s}
        message = json.dumps(header).encode("ascii") + b"\n" + page.body
        async with self._places:
            try:
                answer = await self._extracted(message)
            except ExtractorLostError:
                answer = await self._again(message)
        if "error" in answer or not answer.get("text"):
            raise ToolError("the page has no text that can be read")
        return PageText(url=page.url, title=answer["title"], text=answer["text"])

    async def _again(self, message: bytes) -> dict[str, str]:
        """Once more in a new process: the first one may have been killed for something else."""
        try:
            return await self._extracted(message)
        except ExtractorLostError as error:
            raise ToolError("the page has no text that can be read") from error

    async def _extracted(self, message: bytes) -> dict[str, str]:
        one = self._idle.pop() if self._idle else await _Extractor.start()
        self._busy.add(one)
        keeps = False
        try:
            answer = await one.extract(message, self.page_s + GRACE_S)
            keeps = one.pages < PAGES
        finally:
            self._busy.discard(one)
            if keeps:
                self._idle.append(one)
            else:
                await asyncio.shield(one.stop())
        return answer

    async def aclose(self) -> None:
        processes, self._idle = [*self._idle, *self._busy], []
        await asyncio.gather(*(one.stop() for one in processes))
