"""Messages that a policy sampled as agents get them: thoughts, text and tool calls apart.

Calls in the JSON forms of `helpers.json_calls` are read from the text. For other chat templates there is the package
`renderers` (`ramet[renderers]`), which reads token ids: the first of its families that reads back a call which the
template wrote. Prompts are the chat template's own with either reader.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from ramet.errors import ConfigError
from ramet.helpers.json_calls import JsonCall, MalformedCall, checked_call, located_calls, message_place
from ramet.types import Message, ToolSchema

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

logger = logging.getLogger(__name__)
PACKAGE = "renderers"
# Families of the package, each with a form of calls or of special tokens of its own. Not among them: the JSON forms,
# gpt-oss (its tokenizer is downloaded), those without a chat template, and Kimi (results name their call's id).
FAMILIES = (
    "qwen3.5",
    "prime-qwen3",
    "nemotron-3",
    "glm-4.5",
    "deepseek-v3",
    "minimax-m2",
    "hy3",
    "laguna-xs.2",
    "gemma4",
)
READ = frozenset({"ok", "invalid_json", "unknown_tool"})  # statuses of calls that are complete
TRIAL = ToolSchema(
    name="ramet_tool",
    description="Returns its input.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}},
)
TRIAL_CALL: Mapping[str, Any] = {"name": TRIAL.name, "arguments": {"text": "two words", "count": 7}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMessage:
    """A sampled message in parts. Calls that cannot be read stay in the text."""

    text: str
    thoughts: str = ""
    calls: tuple[JsonCall, ...] = ()
    n_malformed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """A turn that was sampled after a prompt, without its end of sequence."""

    prompt: Sequence[int]
    ids: Sequence[int]
    text: str  # of the ids, up to `stop`
    stop: str | None = None  # the client's stop string, if one ended the turn


class CallReader(Protocol):
    """Reads the messages of one model. Raises nothing: what it cannot read is text."""

    def __call__(self, sampled: SampledTurn, tools: Sequence[ToolSchema]) -> SampledMessage: ...


def read_json_calls(sampled: SampledTurn, tools: Sequence[ToolSchema]) -> SampledMessage:
    """Read calls as JSON objects; none without tools."""
    text = sampled.text
    start, end = message_place(text)
    thoughts = f"{text[:start]}{text[end:]}".replace("<think>", "").replace("</think>", "").strip()
    message, kept, done = text[start:end], "", 0
    calls, n_malformed = list[JsonCall](), 0
    for first, after, call in located_calls(message, "auto") if tools else ():
        if isinstance(call, MalformedCall):
            n_malformed += 1
            continue
        calls.append(call)
        kept += message[done:first]
        done = after
    text = (kept + message[done:]).strip()
    return SampledMessage(text=text, thoughts=thoughts, calls=tuple(calls), n_malformed=n_malformed)


@lru_cache(maxsize=4)  # a model has one encoder
def call_reader(encoder: Encoder) -> CallReader:
    """The reader of the calls that the chat template teaches; the JSON reader for a template that shows none.

    Raises `ConfigError` if none reads them, or if the template does not show the results as the gateway gives them.
    """
    try:
        shown = encoder.template.content("", [TRIAL_CALL])
    except ConfigError as error:
        if not encoder.template.describes_tools():
            return read_json_calls
        raise ConfigError(
            "model.chat_template: describes tools, and does not show an assistant's `tool_calls` in the place of its "
            "text, so the gateway cannot tell how calls are written; give a template that does"
        ) from error
    if any(isinstance(call, JsonCall) and call.name == TRIAL.name for _, _, call in located_calls(shown, "auto")):
        return read_json_calls
    reader = _renderers_reader(encoder, shown)
    try:
        encoder.suffix([Message(role="tool", content="1")], after=-1)
    except ValueError as error:
        raise ConfigError(f"model.chat_template: {error}; give a template that shows results of tools") from error
    return reader


def _renderers_reader(encoder: Encoder, shown: str) -> CallReader:
    """The reader of the first family that reads back the call that the template showed."""
    problem = f"model.chat_template: its tool calls have a form that the gateway does not read: {shown!r:.200}; give a "
    problem += "template whose calls are JSON objects, as Qwen2.5's, Hermes' and Llama 3.1's are"
    if find_spec(PACKAGE) is None:
        raise ConfigError(f"{problem}, or install the package that reads more forms: pip install 'ramet[{PACKAGE}]'")
    package = importlib.import_module(PACKAGE)
    sampled = SampledTurn(prompt=(), ids=encoder.markup(shown), text=shown)
    for family in FAMILIES:
        try:
            renderer = _renderer(package, family, encoder)
        except Exception as error:  # a tokenizer without its special tokens, mostly
            logger.debug("%s: the family %s does not fit: %s", PACKAGE, family, error)
            continue
        reader = RenderersReader(renderer, encoder)
        if reader(sampled, [TRIAL]).calls == (JsonCall(**TRIAL_CALL),):
            logger.info("tool calls are read by the package %s, family %s", PACKAGE, family)
            return reader
    raise ConfigError(f"{problem}. The package {PACKAGE} {package.__version__} has no family that reads them either")


def _renderer(package: Any, family: str, encoder: Encoder) -> Any:
    """The package's object for a family, with the variables of the chat template that it knows."""
    config = package.config_from_name(family)
    known = package.template_field_names(config)
    variables = {name: value for name, value in encoder.template.kwargs.items() if name in known}
    return package.create_renderer(encoder.tokenizer, config, chat_template_kwargs=variables)


class RenderersReader:
    """Reads calls by an object of the package `renderers`."""

    def __init__(self, renderer: Any, encoder: Encoder) -> None:
        self._renderer, self._encoder = renderer, encoder

    def __call__(self, sampled: SampledTurn, tools: Sequence[ToolSchema]) -> SampledMessage:
        if not tools:
            return read_json_calls(sampled, tools)
        ids, functions = list(sampled.ids), [tool.function for tool in tools]
        try:
            parsed = self._renderer.parse_response(ids, tools=functions, prompt_ids=list(sampled.prompt))
        except Exception as error:  # whatever a parser raises for what a policy wrote
            logger.debug("%s: a message cannot be read: %s: %s", PACKAGE, type(error).__name__, error)
            return SampledMessage(text=sampled.text.strip(), n_malformed=1)
        calls, text = list[JsonCall](), str(parsed.content)
        for attempt in parsed.tool_calls:
            call = checked_call({"name": attempt.name, "arguments": attempt.arguments}, "tool_call")
            if isinstance(call, JsonCall) and str(attempt.status) in READ:
                calls.append(call)
            else:
                span = attempt.token_span
                text += attempt.raw if span is None else self._encoder.decode(ids[span[0] : span[1]])
        thoughts, text = (
            part.partition(sampled.stop)[0] if sampled.stop else part for part in (parsed.reasoning_content or "", text)
        )
        return SampledMessage(
            text=text.strip(),
            thoughts=thoughts.strip(),
            calls=tuple(calls),
            n_malformed=len(parsed.tool_calls) - len(calls),
        )
