"""The rollout step `tags`: the model thinks, calls tools and answers between tags.

A turn samples until the closing tag of a tool or of the answer. The call is looked for only in what the policy sampled
in this turn, so no example in the prompt and no tool result can ever be executed. What the model gets wrong (empty
call, closing tag without an opening one, bad JSON) comes back to it as a result, and the rollout goes on.

Results are wrapped as the released ARPO wraps them: a space, `<result>`, newline, text, newline, `</result>`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from ramet.errors import ConfigError, ToolError
from ramet.rollout.config import TagsConfig
from ramet.types import (
    Generation,
    Insert,
    Markup,
    RolloutState,
    Sampled,
    StepContext,
    StepResult,
    StopReason,
    ToolCall,
    ToolSchema,
    TracePart,
    Untrusted,
)


class Tags:
    """`RolloutStep` and `TraceReader`."""

    def __init__(self, config: TagsConfig) -> None:
        self.config = config
        # A result that spells these could seem to end itself, or to hold the model's answer.
        self._forged = re.compile(rf"<(?=/?(?:{re.escape(config.result)}|{re.escape(config.answer)})>)")

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        self._check_names(tools)
        c = self.config
        lines = [f"Solve the task step by step. Write your reasoning between <{c.think}> and </{c.think}>."]
        if tools:
            lines += [
                "You can use the tools below while you work. To call one, write its input between its tags; you then "
                f"get what it returned between <{c.result}> and </{c.result}>, and go on from there. Never write a "
                f"<{c.result}> block yourself.",
                "",
                *(_describe(tool) for tool in tools),
                "",
            ]
        lines.append(
            f"When you know the answer, write it between <{c.answer}> and </{c.answer}>. Nothing behind it is read."
        )
        return "\n".join(lines)

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        self._check_names(ctx.tools)
        by_stop = {f"</{tool.name}>": tool for tool in ctx.tools}
        end = f"</{self.config.answer}>"
        generation = await ctx.generate(stop=[*by_stop, end])
        if generation.stop in by_stop:
            return await self._use(by_stop[generation.stop], generation.text, state, ctx)
        if generation.stop == end:
            answer = _last_block(generation.text, self.config.answer)
            if answer is None:
                return self._tell("The closing tag of the answer stands here without its opening tag in this turn.")
            return StepResult(stop=StopReason.ANSWER, answer=answer.strip())
        return StepResult(stop=_reason(generation), answer=_stripped(_last_block(generation.text, self.config.answer)))

    async def _use(self, tool: ToolSchema, text: str, state: RolloutState, ctx: StepContext) -> StepResult:
        if state.n_tool_calls >= ctx.max_tool_calls:
            return StepResult(stop=StopReason.CALL_LIMIT)
        try:
            content = _last_block(text, tool.name)
            if content is None:
                raise ToolError(f"The closing tag </{tool.name}> stands here without <{tool.name}> in this turn.")
            call = ToolCall(name=tool.name, arguments=_arguments(tool, content), turn=state.turn)
            result = await ctx.call_tool(call)
        except ToolError as error:
            return self._tell(str(error))
        return self._tell(result.text)

    def _tell(self, text: str) -> StepResult:
        return StepResult(insert=tuple(self.result(text)))

    def result(self, text: str) -> Sequence[Insert]:
        """Result and answer tags in `text` get `&lt;`: a web page cannot end the block or forge an answer."""
        tag = self.config.result
        body = self._forged.sub("&lt;", text)
        return Markup(text=f" <{tag}>\n"), Untrusted(text=body), Markup(text=f"\n</{tag}>")

    def read(self, text: str, tools: Sequence[str]) -> Sequence[TracePart]:
        """A result block right behind a tool's closing tag is inserted; everything else is what the policy writes."""
        return list(self._parts(text, tools))

    def _parts(self, text: str, tools: Sequence[str]) -> Iterator[TracePart]:
        if not tools:
            yield Sampled(text=text)
            return
        names = "|".join(map(re.escape, tools))
        tag = re.escape(self.config.result)
        block = re.compile(rf"(</(?:{names})>)(\s*<{tag}>\n?)(.*?)(\n?</{tag}>)", re.DOTALL)
        done = 0
        for found in block.finditer(text):
            yield Sampled(text=text[done : found.end(1)])
            yield Markup(text=found[2])
            yield Untrusted(text=found[3])
            yield Markup(text=found[4])
            done = found.end()
        if done < len(text):
            yield Sampled(text=text[done:])

    def _check_names(self, tools: Sequence[ToolSchema]) -> None:
        own = {self.config.think, self.config.result, self.config.answer}
        taken = sorted(own & {tool.name for tool in tools})
        if taken:
            raise ConfigError(
                f"tools.{taken[0]}: the rollout step `tags` uses <{taken[0]}> itself; rename it in rollout_step.params"
            )


def _describe(tool: ToolSchema) -> str:
    description = " ".join(tool.description.split())
    if tool.text_parameter is not None:
        return f"- <{tool.name}>{tool.text_parameter}</{tool.name}>: {description}"
    properties = tool.parameters.get("properties", {})
    return f"- <{tool.name}>{_example(properties)}</{tool.name}> (a JSON object): {description}"


def _example(properties: dict[str, Any]) -> str:
    inside = ", ".join(f'"{name}": {_type_name(spec)}' for name, spec in properties.items())
    return f"{{{inside}}}"


def _type_name(spec: dict[str, Any]) -> str:
    found = spec.get("type", "any")
    return " or ".join(map(str, found)) if isinstance(found, list) else str(found)


def _arguments(tool: ToolSchema, content: str) -> dict[str, Any]:
    """A tool with one required string gets the text, without surrounding space; others get a JSON object."""
    text = textwrap.dedent(content).strip()
    if not text:
        raise ToolError(f"The {tool.name} call is empty: write its input between <{tool.name}> and </{tool.name}>.")
    if tool.text_parameter is not None:
        return {tool.text_parameter: text}
    form = _example(tool.parameters.get("properties", {}))
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"The {tool.name} call is not valid JSON ({error}). Expected: {form}") from error
    if not isinstance(arguments, dict):
        raise ToolError(f"The {tool.name} call must be a JSON object: {form}")
    return arguments


def _last_block(text: str, tag: str) -> str | None:
    """What stands between the last closing tag and the last opening tag before it."""
    close = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(close, 0))
    return None if close < 0 or start < 0 else text[start + len(tag) + 2 : close]


def _stripped(text: str | None) -> str | None:
    return None if text is None else text.strip()


def _reason(generation: Generation) -> StopReason:
    return StopReason.LENGTH if generation.truncated else StopReason.END
