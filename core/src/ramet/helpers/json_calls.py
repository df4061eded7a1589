"""Tool calls as JSON objects in a message, in the two forms that chat templates teach.

* `tool_call` (Hermes; Qwen2.5, Qwen3): any text, and between `<tool_call>` and `</tool_call>` one object with `name`
  and `arguments`, as often as there are calls.
* `json` (Llama 3.1): the message is one object with `name` and `parameters`, perhaps after `<|python_tag|>`; several
  are separated by semicolons.

The model gets problems of its calls as fixed English texts; they are not infrastructure failures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ramet.io.json_values import MAX_NESTING, json_fault, too_deep, visible
from ramet.types import Message

FORMS = ("auto", "tool_call", "json")
_BEGIN, _END = "<think>", "</think>"
OPENING, CLOSING, PYTHON = "<tool_call>", "</tool_call>", "<|python_tag|>"
KEYS = {"tool_call": "arguments", "json": "parameters"}  # where each form has the arguments
_DECODER = json.JSONDecoder()
_FORGED = re.compile(r"<(?=/?(?:tool_call|tool_response|tools|think)>)")  # as a result may not spell them
_SEEMS_A_CALL = re.compile(r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"')
_SPACE, _NEXT = re.compile(r"\s*"), re.compile(r"\s*;\s*(?=\{)")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCall:
    """A call that can be made; whether its tool exists and takes these arguments is not known yet."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedCall:
    """`text` names the problem for the model."""

    text: str


Found: TypeAlias = JsonCall | MalformedCall


def example(form: str) -> str:
    """One call in the form, with names in capitals for what the model fills in."""
    call = f'{{"name": "NAME", "{KEYS[form]}": {{"ARGUMENT": VALUE}}}}'
    return f"{OPENING}\n{call}\n{CLOSING}" if form == "tool_call" else call


def inert_results(texts: Sequence[str]) -> list[Message]:
    """Messages of role `tool`. Tags of the format get `&lt;`: a web page cannot end its block, or pose as a call."""
    return [Message(role="tool", content=_FORGED.sub("&lt;", text)) for text in texts]


def message_of(text: str) -> str:
    """The message in a turn's text: the part after the reasoning, or, if that never ends, before it.

    A call's JSON may contain these tags, as code that looks for them does; they are part of that text.
    """
    start, end = message_place(text)
    return text[start:end]


def message_place(text: str) -> tuple[int, int]:
    """Start and end of the message in a turn's text; the reasoning is around it."""
    blank = _without_arguments(text)
    start = blank.rfind(_END) + len(_END) if _END in blank else 0
    end = blank.find(_BEGIN, start)
    return start, len(text) if end < 0 else end


def _without_arguments(text: str) -> str:
    """Return a text of the same length with the JSON objects of calls blank. Tags outside of such JSON stay."""
    if OPENING not in text or (_BEGIN not in text and _END not in text):
        return text
    parts, done = [], 0
    start = text.find(OPENING)
    while start >= 0:
        begin = _after_space(text, start + len(OPENING))
        value, end = _decoded(text, begin)
        if isinstance(value, dict):
            parts += [text[done:begin], " " * (end - begin)]
            done = end
        start = text.find(OPENING, max(end, begin))
    return "".join((*parts, text[done:]))


def find_calls(text: str, form: str) -> list[Found]:
    """The calls of a turn in order; none in its reasoning. `auto` reads `json` if the turn has no `<tool_call>`."""
    return [found for _, _, found in located_calls(message_of(text), form)]


def located_calls(message: str, form: str) -> list[tuple[int, int, Found]]:
    """Start, end and call of each call of a message, its tags included."""
    if form == "tool_call" or (form == "auto" and OPENING in message):
        return list(_between_tags(message))
    return [(0, len(message), call) for call in _whole_message(message)]


def _between_tags(message: str) -> Iterator[tuple[int, int, Found]]:
    start = message.find(OPENING)
    while start >= 0:
        call, end = _tagged(message, _after_space(message, start + len(OPENING)))
        closed = message.startswith(CLOSING, end)
        yield start, end + len(CLOSING) * closed, call
        start = message.find(OPENING, end)


def _tagged(message: str, start: int) -> tuple[Found, int]:
    """The call that begins at `start`, and its end. Its JSON says where it ends: a text in it may contain tags."""
    value, end = _decoded(message, start)
    close = message.find(CLOSING, start if isinstance(value, MalformedCall) else end)
    if isinstance(value, MalformedCall):
        return checked_call(value, "tool_call"), len(message) if close < 0 else close
    if close < 0 or message[end:close].strip():
        between = "is not closed" if close < 0 else "goes on after its JSON object"
        problem = f"The tool call {between}: write {CLOSING} right after the object."
        return MalformedCall(text=problem), len(message) if close < 0 else close
    return checked_call(value, "tool_call"), close


def _whole_message(message: str) -> list[Found]:
    said = message.strip()
    text = said.removeprefix(PYTHON).lstrip()
    value, end = _decoded(text, 0)
    if said == text and not _is_call(value) and not (isinstance(value, MalformedCall) and _SEEMS_A_CALL.match(text)):
        return []  # an answer
    calls = [checked_call(value, "json")]
    while not isinstance(calls[-1], MalformedCall) and (following := _NEXT.match(text, end)) is not None:
        value, end = _decoded(text, following.end())
        calls.append(checked_call(value, "json"))
    return calls


def _is_call(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and bool({*KEYS.values()} & value.keys())


def _after_space(text: str, start: int) -> int:
    space = _SPACE.match(text, start)
    return start if space is None else space.end()


def _decoded(text: str, start: int) -> tuple[Any, int]:
    """The JSON value at `start` and its end; `MalformedCall` without one."""
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        return MalformedCall(
            text=f"The tool call is not valid JSON: {error.msg} (character {error.pos - start})."
        ), start
    except (ValueError, RecursionError):  # an integer of thousands of digits, or endless nesting
        return MalformedCall(text="The tool call is not valid JSON: a number or its nesting is too long."), start


def checked_call(value: Any, form: str) -> Found:
    """The call that a JSON value in a form is, if it can be made."""
    if isinstance(value, MalformedCall):
        return MalformedCall(text=f"{value.text} Expected: {example(form)}")
    if not isinstance(value, dict):
        return MalformedCall(text=f"The tool call must be a JSON object. Expected: {example(form)}")
    if too_deep(value):
        return MalformedCall(text=f"The tool call is nested more than {MAX_NESTING} levels deep.")
    if (fault := json_fault(value)) is not None:
        return MalformedCall(text=f"The tool call holds {fault}.")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return MalformedCall(text=f'The tool call names no tool: "name" must be a text. Expected: {example(form)}')
    written_keys = [key for key in KEYS.values() if value.get(key) is not None]
    # A tool may need none; its schema names missing ones.
    arguments = value[written_keys[0]] if written_keys else {}
    if not isinstance(arguments, dict):
        return MalformedCall(text=f'The "{written_keys[0]}" of the {visible(name[:80])} call must be a JSON object.')
    return JsonCall(name=name, arguments=arguments)
