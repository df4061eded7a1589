"""Pages as text, by processes without an environment: parsers hang and crash on bad input."""

from __future__ import annotations

import base64
import os
import sys
from dataclasses import dataclass

from ramet import ToolError
from ramet.helpers import ProcessLost, ProcessPool
from ramet_tools_bing.fetch.download import Download

PAGE_S = 10.0  # for one page; more is a parser that hangs
GRACE_S = 2.0  # after which a process that has not ended itself is ended
PAGES = 500  # after which a process is replaced: parsers leak


@dataclass(frozen=True, slots=True, kw_only=True)
class PageText:
    """`url` is where the last redirect led."""

    url: str
    title: str
    text: str


class PageExtractor:
    """At most `size` processes that turn pages into text."""

    def __init__(self, size: int, page_s: float = PAGE_S) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        self.page_s = page_s
        self.pool = ProcessPool(
            "ramet_tools_bing.fetch.extractor",
            size=size,
            deadline_s=page_s + GRACE_S,
            environment={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "PYTHONPATH": path},  # no key is there to be read
            most_requests=PAGES,
        )

    async def text(self, page: Download, chars: int) -> PageText:
        """Raises `ToolError` for a page that cannot be read, `InfraError` if no process can be started."""
        request = {
            "kind": page.kind, "url": page.url, "charset": page.charset, "chars": chars, "timeout_s": self.page_s,
            "body": base64.b64encode(page.body).decode("ascii"),
        }  # fmt: skip
        try:
            answer = await self.pool.ask(request)
        except ProcessLost:  # perhaps killed for something else
            try:
                answer = await self.pool.ask(request)
            except ProcessLost as error:
                raise ToolError("the page has no text that can be read") from error
        if "error" in answer or not answer.get("text"):
            raise ToolError("the page has no text that can be read")
        return PageText(url=page.url, title=answer["title"], text=answer["text"])
