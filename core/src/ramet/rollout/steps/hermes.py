"""The rollout step `hermes`: the model calls tools by JSON, in the form of its own chat template.

The template describes the tools (`tools=`) and wraps what they return (messages of role `tool`); this step reads the
calls. A turn is a complete message. Its calls run at the same time, and their results are inserted in the order of the
calls. A message without a call is the answer, and ends the rollout.

Sampled tokens are never tokenised again. After them comes only the template's text after an assistant's message
(`StepContext.render`). The model gets its mistakes back as the result of that call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from ramet.errors import ToolError
from ramet.helpers.json_calls import (
    Found,
    JsonCall,
    MalformedCall,
    example,
    find_calls,
    inert_results,
    message_of,
)
from ramet.rollout.config import HermesConfig
from ramet.rollout.steps.trace_check import TraceCheck
from ramet.types import (
    Message,
    RolloutState,
    StepContext,
    StepResult,
    StopReason,
    ToolCall,
    ToolSchema,
)


class Hermes:
    """`RolloutStep`, `TemplateFormat` and `ChecksMessages`."""

    def __init__(self, config: HermesConfig) -> None:
        self.config = config

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        """Describe the tools, where the chat template does not."""
        if not tools:
            return ""
        form = "json" if self.config.form == "json" else "tool_call"
        several = " Write several calls to have them run at the same time; the results come in their order."
        return "\n".join(
            [
                "You can use these tools, each described by a JSON schema:",
                *(json.dumps(tool.function, ensure_ascii=False) for tool in tools),
                f"To call one, write\n{example(form)}\nand nothing after it."
                + (several if form == "tool_call" else "")
                + " A message without a call is your answer.",
            ]
        )

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        generation = await ctx.generate()
        if generation.truncated:
            return StepResult(stop=StopReason.LENGTH)
        calls = find_calls(generation.text, self.config.form)
        if not calls:
            answer = message_of(generation.text).strip()
            return StepResult(stop=StopReason.ANSWER if answer else StopReason.END, answer=answer or None)
        n_left = ctx.max_tool_calls - state.n_tool_calls
        if n_left < 1:
            return StepResult(stop=StopReason.CALL_LIMIT)
        texts = await self._run(calls, n_left, state.turn, ctx)
        malformed = sum(isinstance(call, MalformedCall) for call in calls)
        metrics = {"calls": float(len(calls)), "malformed_calls": float(malformed)}
        not_made = malformed + max(0, len(calls) - malformed - n_left)
        info = {"calls_not_made": not_made} if not_made else {}  # read by the reward `tool_calls`
        return StepResult(insert=tuple(ctx.render(self.results(texts))), info=info, metrics=metrics)

    async def _run(self, calls: Sequence[Found], n_left: int, turn: int, ctx: StepContext) -> list[str]:
        """The result of each call. The first `n_left` valid calls are made, all at the same time."""
        allowed = [call for call in calls if isinstance(call, JsonCall)][:n_left]
        over = "Not run: the limit of tool calls is reached."
        results = iter(await asyncio.gather(*(_result(call, turn, ctx) for call in allowed)))
        return [call.text if isinstance(call, MalformedCall) else next(results, over) for call in calls]

    def results(self, texts: Sequence[str]) -> Sequence[Message]:
        """Messages of role `tool`, whose texts cannot end their block, or pose as a call."""
        return inert_results(texts)

    def check_message(self, text: str, n_results: int, calls: Sequence[str] = ()) -> TraceCheck:
        all_calls = find_calls(text, self.config.form)
        fault = next((call.text for call in all_calls if isinstance(call, MalformedCall)), None)
        total = len(all_calls) + len(calls)
        if fault is None and n_results not in (0, total):
            fault = f"{n_results} results for {total} calls"
        names = [*(call.name for call in all_calls if isinstance(call, JsonCall)), *calls]
        return TraceCheck(
            fault=fault,
            has_tags=total > 0,
            has_answer=total == 0 and bool(message_of(text).strip()),
            called=tuple(dict.fromkeys(names)) if n_results else (),
        )


async def _result(call: JsonCall, turn: int, ctx: StepContext) -> str:
    try:
        return (await ctx.call_tool(ToolCall(name=call.name, arguments=call.arguments, turn=turn))).text
    except ToolError as error:
        return str(error)
