"""The rollout step `tags`: the model thinks, calls tools and answers between tags.

A turn samples until the closing tag of a tool or of the answer. The call is looked for only in what the policy sampled
in this turn, so no example in the prompt and no tool result can ever be executed. The model gets its mistakes (empty
call, closing tag without an opening one, bad JSON) back as a result, and the rollout continues.

A result is never the policy's to write: a turn also ends at `<result>`, and at the closing tag of a tool that the
task's system message names and that this rollout does not have. The model gets a text on that, and its own text is
trained as usual.

Results are wrapped as the released ARPO wraps them: a space, `<result>`, newline, text, newline, `</result>`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ramet.errors import ConfigError, ToolError
from ramet.io.json_values import MAX_NESTING, json_fault, too_deep
from ramet.rollout.config import TagsConfig
from ramet.rollout.steps.trace_check import TagNames, TraceCheck, check_tags
from ramet.types import (
    Generation,
    Insert,
    Markup,
    Message,
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
from ramet.types.tool_schema import properties_of

MOST_STOPS = 64  # sets of stop strings that are kept
NAME = r"[A-Za-z_][\w.-]*"
TAG = re.compile(rf"<(/?)({NAME})>")
HTML = frozenset(
    "a abbr b blockquote body br button code dd del details div dl dt em font form h1 h2 h3 h4 h5 h6 head hr html i "
    "img input ins kbd label li link main math meta nav ol option p pre q s script section select small span strong "
    "style sub summary sup svg table tbody td textarea tfoot th thead title tr tt u ul var".split()
)


@dataclass(frozen=True, slots=True)
class _Stops:
    """The strings that end a turn. `tools` and `missing`: closing tag -> name of a tool that there is, or is not."""

    tools: dict[str, str]
    missing: dict[str, str]
    answer: str
    result: str
    strings: tuple[str, ...]  # all of them


class Tags:
    """`RolloutStep`, `TraceReader` and `ChecksTraces`."""

    def __init__(self, config: TagsConfig) -> None:
        self.config = config
        # A result that spells these could seem to end itself, or to contain the model's answer.
        self._forged = re.compile(rf"<(?=/?(?:{re.escape(config.result)}|{re.escape(config.answer)})>)")
        tag = re.escape(config.result)
        self._opening = re.compile(rf"(</([^<>/\s]+)>|<{tag}>)(\s*<{tag}>\n?)")  # of a result block, after a tag
        self._known_stops: dict[tuple[tuple[str, ...], ...], _Stops] = {}

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        self._check_names(tools)
        c = self.config
        lines = [f"Solve the task step by step. Write your reasoning between <{c.think}> and </{c.think}>."]
        if tools:
            lines += [
                "You can use the tools below while you work. To call one, write its input between its tags; you then "
                f"get what it returned between <{c.result}> and </{c.result}>, and continue from there. Never write a "
                f"<{c.result}> block yourself.",
                "",
                *(_describe(tool) for tool in tools),
                "",
            ]
        lines.append(
            f"When you know the answer, write it between <{c.answer}> and </{c.answer}>. Anything after it is ignored."
        )
        return "\n".join(lines)

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        stops = self._stops(ctx.tools, state.task.prompt)
        generation = await ctx.generate(stop=stops.strings)
        if generation.stop in stops.tools or generation.stop in stops.missing:
            if state.n_tool_calls >= ctx.max_tool_calls:
                return StepResult(stop=StopReason.CALL_LIMIT)  # whether or not the call is one that can be made
            try:
                result = await ctx.call_tool(_call(generation, stops, ctx.tools, state.turn))
            except ToolError as error:
                return self._inserted(str(error))
            return self._inserted(result.text)
        if generation.stop == stops.result:
            return self._inserted(
                "A result is written for you once a tool has run: never write one yourself. "
                f"Tools: {', '.join(tool.name for tool in ctx.tools) or 'none'}."
            )
        if generation.stop == stops.answer:
            return self._answer(generation.text)
        return StepResult(stop=_reason(generation), answer=_stripped(_last_block(generation.text, self.config.answer)))

    def stop_strings(self, tools: Sequence[ToolSchema], prompt: Sequence[Message]) -> Sequence[str]:
        """Return the strings at which a turn ends."""
        return self._stops(tools, prompt).strings

    def _stops(self, tools: Sequence[ToolSchema], prompt: Sequence[Message]) -> _Stops:
        """Return the stops, kept by what decides them: every turn of a task and most tasks have the same."""
        names = tuple([tool.name for tool in tools])
        key = names, tuple([message.content for message in prompt if message.role == "system"])
        stops = self._known_stops.get(key)
        if stops is None:
            self._check_names(tools)
            if len(self._known_stops) >= MOST_STOPS:
                self._known_stops.clear()
            stops = self._known_stops[key] = self._new_stops(names, prompt)
        return stops

    def _new_stops(self, names: Sequence[str], prompt: Sequence[Message]) -> _Stops:
        system = [message for message in prompt if message.role == "system"]
        tools = {f"</{name}>": name for name in names}
        missing = {f"</{name}>": name for name in self.foreign_tags(system, names)}
        answer, result = f"</{self.config.answer}>", f"<{self.config.result}>"
        return _Stops(tools, missing, answer, result, strings=(*tools, answer, result, *missing))

    def _answer(self, text: str) -> StepResult:
        answer = _last_block(text, self.config.answer)
        if answer is None:
            return self._inserted("Found the closing tag of the answer without its opening tag in this turn.")
        return StepResult(stop=StopReason.ANSWER, answer=answer.strip())

    def _inserted(self, text: str) -> StepResult:
        return StepResult(insert=tuple(self.result(text)))

    def result(self, text: str) -> Sequence[Insert]:
        """Result and answer tags in `text` get `&lt;`: a web page cannot end the block or forge an answer."""
        tag = self.config.result
        body = self._forged.sub("&lt;", text)
        return Markup(text=f" <{tag}>\n"), Untrusted(text=body), Markup(text=f"\n</{tag}>")

    def foreign_tags(self, messages: Sequence[Message], tools: Sequence[str]) -> list[str]:
        """Names of the tags that a prompt shows in pairs and that are neither the step's, nor of one of `tools`, nor in
        `other_tags`. HTML tags in a user's message are its subject and name no tool.
        """
        known_tags = {self.config.think, self.config.result, self.config.answer, *self.config.other_tags, *tools}
        named = (
            name
            for message in messages
            for name in _pairs(message.content)
            if message.role == "system" or name.lower() not in HTML
        )
        return [name for name in dict.fromkeys(named) if name not in known_tags]

    def read(self, text: str, tools: Sequence[str]) -> Sequence[TracePart]:
        """A result block is inserted right after a tool's closing tag, and where a rollout informs the model that it
        broke the format. The policy writes the rest.
        """
        return list(self._parts(text, tools))

    def check_trace(self, text: str, tools: Sequence[str]) -> TraceCheck:
        c = self.config
        return check_tags(text, TagNames(think=c.think, result=c.result, answer=c.answer), tools)

    def _parts(self, text: str, tools: Sequence[str]) -> Iterator[TracePart]:
        closing, done, position = f"</{self.config.result}>", 0, 0
        while (opening := self._opening.search(text, position)) is not None:
            position = opening.end(1)
            if not self._is_inserted(opening, text, tools):
                continue
            start = opening.end()
            tag = text.find(closing, start)
            if tag < 0:
                break  # no later block is closed either
            end = tag - text.endswith("\n", start, tag)
            yield Sampled(text=text[done:position])
            yield Markup(text=opening[3])
            yield Untrusted(text=text[start:end])
            done = position = tag + len(closing)
            yield Markup(text=text[end:done])
        if done < len(text):
            yield Sampled(text=text[done:])

    def _is_inserted(self, opening: re.Match[str], text: str, tools: Sequence[str]) -> bool:
        name = opening[2]  # None: after an opening tag of a result
        no_tool = f"There is no tool {name}."
        return name in (*tools, self.config.answer, None) or text.startswith(no_tool, opening.end())

    def _check_names(self, tools: Sequence[ToolSchema]) -> None:
        own_tags = {self.config.think, self.config.result, self.config.answer}
        taken = sorted(own_tags & {tool.name for tool in tools})
        if taken:
            raise ConfigError(
                f"tools.{taken[0]}: the rollout step `tags` uses <{taken[0]}> itself; rename it in rollout_step.params"
            )
        odd = [repr(tool.name) for tool in tools if not re.fullmatch(NAME, tool.name)]
        if odd:  # a server of MCP may name its tools so
            raise ConfigError(
                f"tools: the rollout step `tags` cannot write these names as tags: {', '.join(odd)}; allowed: letters, "
                "digits and _ . -, a letter or _ first. Take rollout_step=hermes, or leave them out: a server of MCP "
                "by params.tools"
            )


def _call(generation: Generation, stops: _Stops, tools: Sequence[ToolSchema], turn: int) -> ToolCall:
    """The call that ended a turn. The core answers and counts one of an unknown tool.

    Raises `ToolError` for anything but a call of its tool.
    """
    assert generation.stop is not None
    if (missing := stops.missing.get(generation.stop)) is not None:
        text = (_last_block(generation.text, missing) or "").strip()
        return ToolCall(name=missing, arguments={"text": text}, turn=turn)
    name = stops.tools[generation.stop]
    content = _last_block(generation.text, name)
    if content is None:
        raise ToolError(f"Found </{name}> without an opening <{name}> in this turn.")
    tool = next(tool for tool in tools if tool.name == name)
    return ToolCall(name=name, arguments=call_arguments(tool, content), turn=turn)


def _describe(tool: ToolSchema) -> str:
    description = " ".join(tool.description.split())
    if tool.text_parameter is not None:
        return f"- <{tool.name}>{tool.text_parameter}</{tool.name}>: {description}"
    return f"- <{tool.name}>{_example(tool)}</{tool.name}> (a JSON object): {description}"


def _example(tool: ToolSchema) -> str:
    inside = ", ".join(f'"{name}": {_type_name(spec)}' for name, spec in properties_of(tool.parameters).items())
    return f"{{{inside}}}"


def _type_name(spec: Mapping[str, Any]) -> str:
    types = spec.get("type", "any")
    return " or ".join(map(str, types)) if isinstance(types, list) else str(types)


def call_arguments(tool: ToolSchema, content: str) -> dict[str, Any]:
    """A tool with one required string gets the text, without surrounding space; others get a JSON object.

    Raises `ToolError` for other texts.
    """
    text = (textwrap.dedent(content) if "\n" in content else content).strip()
    if not text:
        raise ToolError(f"The {tool.name} call is empty: write its input between <{tool.name}> and </{tool.name}>.")
    if (parameter := tool.text_parameter) is not None:
        return {parameter: text}
    form = _example(tool)
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"The {tool.name} call is not valid JSON ({error}). Expected: {form}") from error
    if too_deep(arguments):
        raise ToolError(f"The {tool.name} call is nested more than {MAX_NESTING} levels deep. Expected: {form}")
    if (fault := json_fault(arguments)) is not None:
        raise ToolError(f"The {tool.name} call holds {fault}. Expected: {form}")
    if not isinstance(arguments, dict):
        raise ToolError(f"The {tool.name} call must be a JSON object: {form}")
    return arguments


@lru_cache(maxsize=64)  # the same few system messages, asked about for every task
def _pairs(text: str) -> tuple[str, ...]:
    """Names of the tags that a text both opens and closes, in order, without attributes."""
    tags = TAG.findall(text)
    closed = {name for slash, name in tags if slash}
    return tuple(dict.fromkeys(name for slash, name in tags if not slash and name in closed))


def _last_block(text: str, tag: str) -> str | None:
    """The text between the last closing tag and the last opening tag before it."""
    close = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(close, 0))
    return None if close < 0 or start < 0 else text[start + len(tag) + 2 : close]


def _stripped(text: str | None) -> str | None:
    return None if text is None else text.strip()


def _reason(generation: Generation) -> StopReason:
    return StopReason.LENGTH if generation.truncated else StopReason.END
