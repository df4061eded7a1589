"""An agent for tests: it asks over HTTP, calls its own tool, and gives the last message as its answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import aiohttp

from ramet.types import AgentContext, AgentResult, AgentSettings, Task

Chat = Callable[..., Awaitable[dict[str, Any]]]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


class HttpAgent:
    """An `Agent` whose loop is a function of the task and of what sends chat requests."""

    def __init__(
        self,
        loop: Callable[[Task, AgentContext, Chat], Awaitable[AgentResult]] | None = None,
        forks: Literal["replay", "none"] = "none",
        **settings: Any,
    ) -> None:
        self.loop, self.forks, self.settings = loop or tool_loop, forks, AgentSettings(**settings)

    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {ctx.key}"}) as http:

            async def chat(messages: list[Any], **fields: Any) -> dict[str, Any]:
                body = {"model": ctx.model, "messages": messages, **fields}
                async with http.post(f"{ctx.base_url}/chat/completions", json=body) as response:
                    reply = json.loads(await response.text())
                    if response.status != 200:
                        raise RuntimeError(f"{response.status}: {reply['error']['message']}")
                    return dict(reply["choices"][0]["message"])

            return await self.loop(task, ctx, chat)


async def tool_loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
    """Call `add` as long as the policy does."""
    messages: list[Any] = [{"role": "user", "content": task.question}]
    while True:
        said = await chat(messages, tools=[TOOL])
        messages.append(said)
        if not said.get("tool_calls"):
            return AgentResult(answer=said["content"])
        for call in said["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            result = str(arguments["a"] + arguments["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
