"""The tool `fetch`: the address of a page in, its text out."""

from __future__ import annotations

from ramet import ToolCall, ToolError, ToolResult, ToolSchema
from ramet.helpers import PerLoop
from ramet_tools_bing.cache import AnswerCache
from ramet_tools_bing.config import PageConfig, page_problems, raise_problems
from ramet_tools_bing.fetch.pages import PageReader, PageText
from ramet_tools_bing.service import NotStoredError

NOT_STORED = "This page was not recorded, and only recorded pages are answered here."

SCHEMA = ToolSchema(
    name="fetch",
    description="Reads a page of the web (HTML, PDF or plain text) and returns its text.",
    parameters={
        "type": "object",
        "properties": {"url": {"type": "string", "description": "the address of the page, with https://"}},
        "required": ["url"],
    },
)


class FetchTool:
    """Starts its processes with the first page; may be made before any event loop runs, and pickled."""

    schema = SCHEMA

    def __init__(self, config: PageConfig | None = None) -> None:
        self.config = config or PageConfig()
        raise_problems(page_problems(self.config))
        self.cache = AnswerCache(self.config)
        self._reader = PerLoop(lambda: PageReader(self.config, self.cache))

    def __reduce__(self) -> tuple[type[FetchTool], tuple[PageConfig]]:
        return FetchTool, (self.config,)

    @property
    def reader(self) -> PageReader:
        """Return the reader of this event loop."""
        return self._reader.get()

    async def __call__(self, call: ToolCall) -> ToolResult:
        address = call.arguments.get("url")
        if not isinstance(address, str) or len(call.arguments) != 1:
            raise ToolError(f"{call.name} takes one argument, url, a text")
        try:
            page, cached = await self.reader.read(address.strip())
        except NotStoredError:
            return ToolResult(text=NOT_STORED, metadata={"stored": False})
        except ToolError as error:
            raise ToolError(f"{call.name}: {error}") from error
        return ToolResult(text=page_text(page), cached=cached, metadata={"url": page.url, "chars": len(page.text)})

    async def fetch(self, address: str) -> PageText:
        """Read a page without a run. Raises `ToolError` for one that cannot be read, `InfraError` if we cannot."""
        try:
            page, _ = await self.reader.read(address.strip())
        except NotStoredError as error:
            raise ToolError(NOT_STORED) from error
        return page

    async def aclose(self) -> None:
        await self._reader.aclose()
        self.cache.close()


def page_text(page: PageText) -> str:
    """Write a page as the model reads it: title, address, text."""
    head = [page.title, page.url] if page.title else [page.url]
    return "\n".join([*head, "", page.text])
