"""A step context that replies from a script: to try one turn of a rollout step without engine and tool runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ramet.errors import PluginError, ToolError
from ramet.testing.doubles import cut_at_stop
from ramet.types import (
    Generation,
    Insert,
    Markup,
    Message,
    Tool,
    ToolCall,
    ToolResult,
    ToolSchema,
    Untrusted,
)

ROLES = ("system", "user", "assistant", "tool")


class ScriptedContext:
    """A `StepContext` whose generations are given in order. `calls` records the tool calls, `stops` the stop strings.

    `tools` are real tools, run without a runtime; a step is tried with them as a rollout would use them. Calls carry
    `environment`. Every generation is a turn, every character a token, and the chat template is ChatML.
    """

    def __init__(
        self,
        replies: Sequence[str],
        tools: Sequence[Tool] = (),
        *,
        max_tool_calls: int = 8,
        max_turns: int = 16,
        max_tokens: int = 4096,
        environment: Any = None,
    ) -> None:
        self.calls: list[ToolCall] = []
        self.stops: list[tuple[str, ...]] = []
        self.environment = environment
        self._replies = list(replies)
        self._tools = {tool.schema.name: tool for tool in tools}
        self._max_tool_calls = max_tool_calls
        self._max_turns = max_turns
        self._tokens_left = max_tokens

    @property
    def tools(self) -> Sequence[ToolSchema]:
        return [tool.schema for tool in self._tools.values()]

    @property
    def max_tool_calls(self) -> int:
        return self._max_tool_calls

    @property
    def turns_left(self) -> int:
        return max(1, self._max_turns - len(self.stops))

    @property
    def tokens_left(self) -> int:
        return max(0, self._tokens_left)

    def calls_left(self, tool: str) -> int:
        return self._max_tool_calls - len(self.calls) if tool in self._tools else 0

    def render(self, messages: Sequence[Message]) -> Sequence[Insert]:
        unknown = [message.role for message in messages if message.role not in ROLES]
        if unknown or not messages:
            problem = f"no role {unknown[0]!r}, only {', '.join(ROLES)}" if unknown else "it needs at least one message"
            raise PluginError(f"render was called wrongly: {problem}")
        parts: list[Insert] = []
        for message in messages:
            parts += [Markup(text=f"<|im_end|>\n<|im_start|>{message.role}\n"), Untrusted(text=message.content)]
        return [*parts, Markup(text="<|im_end|>\n<|im_start|>assistant\n")]

    async def generate(self, *, stop: Sequence[str] = ()) -> Generation:
        self.stops.append(tuple(stop))
        text, stop_string = cut_at_stop(self._replies.pop(0), stop)
        self._tokens_left -= len(text)
        return Generation(text=text, stop=stop_string, finished=stop_string is None, truncated=False)

    async def call_tool(self, call: ToolCall) -> ToolResult:
        call = replace(call, environment=self.environment)
        self.calls.append(call)
        if call.name not in self._tools:
            raise ToolError(f"There is no tool {call.name}. Tools: {', '.join(self._tools) or 'none'}.")
        return await self._tools[call.name](call)


def scripted_generate(
    replies: Sequence[str], tools: Sequence[Tool] = (), *, max_tool_calls: int = 8
) -> ScriptedContext:
    """A step context that replies in order."""
    return ScriptedContext(replies, tools, max_tool_calls=max_tool_calls)
