"""A plugin for this bench, loaded by `RAMET_PLUGINS`: other versions of the tool and of the parser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ramet import (
    Generation,
    Register,
    RolloutState,
    RolloutStep,
    Services,
    StepContext,
    StepResult,
    Tool,
    ToolCall,
    ToolResult,
    ToolSchema,
    hookimpl,
)
from ramet.rollout.config import TagsConfig
from ramet.rollout.steps.tags import Tags
from ramet_tools_bing.config import SearchConfig
from ramet_tools_bing.tool import SearchTool

ramet_contract = "1"
FIRST_HALF = "ABCDEFGHIJKLM"


class DottedSearch:
    """The tool `search`, which now ends what it finds with a dot where the query begins with A to M."""

    def __init__(self, config: SearchConfig) -> None:
        self._search = SearchTool(config)
        self.schema: ToolSchema = self._search.schema

    async def start(self, services: Services) -> None:
        await self._search.start(services)

    async def __call__(self, call: ToolCall) -> ToolResult:
        result = await self._search(call)
        changes = str(call.arguments["query"])[:1] in FIRST_HALF
        return replace(result, text=f"{result.text}.") if changes else result

    async def aclose(self) -> None:
        await self._search.aclose()


class LowerTags(Tags):
    """The rollout step `tags`, whose parser now writes the arguments of calls in lower case."""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        return await super().__call__(state, _LowerCalls(ctx))


class _LowerCalls:
    """`StepContext` that makes calls in lower case."""

    def __init__(self, ctx: StepContext) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    async def generate(self, *, stop: Sequence[str] = ()) -> Generation:
        return await self._ctx.generate(stop=stop)

    async def call_tool(self, call: ToolCall) -> ToolResult:
        lower = {name: value.lower() if isinstance(value, str) else value for name, value in call.arguments.items()}
        return await self._ctx.call_tool(replace(call, arguments=lower))


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("dotted_search", DottedSearch, config=SearchConfig)


@hookimpl
def register_rollout_steps(register: Register[RolloutStep]) -> None:
    register("lower_tags", LowerTags, config=TagsConfig)
