"""Text to token ids and back: the one encoder that SFT and rollouts share.

Markup is text of the protocol: tags in it become the special tokens that they name. Untrusted text comes from outside
(tool results): whatever it contains, it must not become an added or special token, or a web page could close a result
or pose as the user. Therefore untrusted text goes through a second tokenizer that does not know those tokens.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ramet.config.schema import ChatMarkup
from ramet.errors import ConfigError
from ramet.types import Insert, Markup, Message, ToolSchema, Untrusted

TEMPLATE_TIMEOUT_S = 20.0  # for the first rendering
RENDERED_CHARS, RENDERED_RATIO = 1_000_000, 16  # limit of a rendered conversation, and what each of its characters adds


class Encoder:
    """Encodes prompts, markup and untrusted text. Never adds a token that is not in the text, such as BOS.

    `end_of_turn_id` is the token with which the chat template ends an assistant's message. It may be another one than
    the tokenizer's end of sequence: `<|im_end|>` beside `<|endoftext|>` in Qwen2.5's base models. `eos_ids` holds
    both, the tokenizer's first; a rollout ends with either. `vocab_size` counts the tokenizer's tokens; a model's head
    may have more rows.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: str | None = None,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        chat_markup: ChatMarkup = ChatMarkup.KEEP,
    ) -> None:
        if tokenizer.eos_token_id is None:
            raise ConfigError("model.tokenizer: the tokenizer has no end-of-sequence token")
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.template_kwargs = dict(template_kwargs or {})
        self._rule = chat_markup
        self._coder = _coder(tokenizer)
        self._wrapper = lru_cache(maxsize=256)(self._coder.markup)  # few texts, inserted again and again
        self._suffix = lru_cache(maxsize=64)(self._template_between)
        self._plain = lru_cache(maxsize=16)(self._coder.untrusted)  # a result is measured first, and inserted then
        self.vocab_size: int = len(tokenizer)
        self.eos_id: int = tokenizer.eos_token_id
        self.pad_id: int = self.eos_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        _check_rendering_ends(self)
        self._chat = _chat_pattern(self)
        self.end_of_turn_id: int = _end_of_turn(self)
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys((self.eos_id, self.end_of_turn_id)))
        self._reserved = frozenset(tokenizer.all_special_ids) | frozenset(tokenizer.added_tokens_decoder)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> array[int]:
        """The chat template with the generation prompt: everything before the assistant's first token.

        `tools` are those that the template describes.
        """
        if self._rule is ChatMarkup.NEUTRALISE and self.chat_markup(messages):
            return self._neutral(messages, tools)
        return self.markup(self._render(messages, tools, generation_prompt=True))

    def suffix(self, messages: Sequence[Message], *, after: int) -> list[Insert]:
        """What the chat template puts after an assistant's message for `messages`, generation prompt included.

        Contents are `Untrusted`, the template's own text `Markup`. If the policy ended its message itself (`after`, the
        last token so far, is the one that the template ends it with), that token is left out. Raises `ValueError` for
        no messages and for roles that the template does not take.
        """
        if not messages:
            raise ValueError("it needs at least one message")
        texts = self._suffix(tuple(message.role for message in messages))
        ids = self.markup(texts[0])
        first = self.decode(ids[1:]) if len(ids) > 0 and ids[0] == after else texts[0]
        parts: list[Insert] = [Markup(text=first)]
        for message, text in zip(messages, texts[1:], strict=True):
            parts += [Untrusted(text=message.content), Markup(text=text)]
        return [part for part in parts if part.text]

    def _template_between(self, roles: Sequence[str]) -> tuple[str, ...]:
        """The template's text before, between and after the contents of messages that follow an assistant's."""
        # Contents that a template will hardly contain or change: its own text is what is rendered between them.
        reply, contents = "ramet-said", [f"ramet-mark-{number}." for number in range(len(roles))]
        messages = [Message(role="user", content="x"), Message(role="assistant", content=reply)]
        messages += [Message(role=role, content=content) for role, content in zip(roles, contents, strict=True)]
        try:
            rest = self._render(messages, generation_prompt=True).rpartition(reply)[2]
        except ConfigError as error:
            raise ValueError(f"the chat template does not take messages of roles {list(roles)}: {error}") from error
        texts = []
        for role, content in zip(roles, contents, strict=True):
            text, found, rest = rest.partition(content)
            if not found:
                raise ValueError(f"the chat template leaves out messages of role {role!r}")
            texts.append(text)
        return (*texts, rest)

    def chat_markup(self, messages: Sequence[Message]) -> int:
        """How many special tokens of the chat template are in the messages' own text."""
        return sum(len(self._chat.findall(message.content)) for message in messages)

    def _neutral(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> array[int]:
        """As `prompt`, with chat markup in the messages spelled out. The template is given a placeholder for each."""
        fence, end, spelled = "\ue000", "\ue001", list[str]()
        while any(fence in message.content for message in messages):
            fence += "\ue000"

        def placeholder(found: re.Match[str]) -> str:
            spelled.append(found[0])
            return f"{fence}{len(spelled) - 1}{end}"

        fenced = [replace(message, content=self._chat.sub(placeholder, message.content)) for message in messages]
        # Every second part is the number of a placeholder.
        parts = re.split(f"{fence}(\\d+){end}", self._render(fenced, tools, generation_prompt=True))
        ids = array("i")
        for index, part in enumerate(parts):
            ids += self.untrusted(spelled[int(part)]) if index % 2 else self.markup(part)
        return ids

    def markup(self, text: str) -> array[int]:
        """Token ids with special tokens parsed."""
        return array("i", self._coder.markup(text))

    def untrusted(self, text: str) -> array[int]:
        """Token ids without any added or special token.

        A character that the vocabulary can only express by a special token (unknown, in vocabularies without bytes)
        is left out.
        """
        ids = self._plain(text)
        if self._reserved.isdisjoint(ids):
            return array("i", ids)
        if len(text) <= 1:
            return array("i", [i for i in ids if i not in self._reserved])
        middle = len(text) // 2  # some vocabularies spell special tokens themselves: cut until none is left whole
        return self.untrusted(text[:middle]) + self.untrusted(text[middle:])

    def insert(self, part: Insert) -> array[int]:
        """Token ids of what a rollout step inserts."""
        match part:
            case Markup():
                return array("i", self._wrapper(part.text))
            case Untrusted():
                return self.untrusted(part.text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, special tokens kept, nothing cleaned up. Ids that no token has are left out."""
        return self._coder.decode(list(ids))

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, generation_prompt: bool) -> str:
        rows = [{"role": m.role, "content": m.content} for m in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                rows,
                tools=[_function(tool) for tool in tools] or None,
                chat_template=self.chat_template,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                **self.template_kwargs,
            )
        except (TemplateError, ValueError, OverflowError, MemoryError, RecursionError) as error:
            reason = "it needs more memory than there is" if isinstance(error, MemoryError) else error
            raise ConfigError(
                f"model.chat_template: cannot render a conversation of roles {[m.role for m in messages]}: {reason}"
            ) from error
        assert isinstance(text, str)
        given = sum(len(message.content) for message in messages) + sum(len(str(_function(tool))) for tool in tools)
        if len(text) > (most := RENDERED_CHARS + RENDERED_RATIO * given):
            raise ConfigError(
                f"model.chat_template: makes {len(text)} characters of a conversation of {given}; at most {most} are "
                "read"
            )
        return text


def _function(tool: ToolSchema) -> dict[str, Any]:
    """The form in which chat templates read tools: JSON schemas of functions."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


class _Coder(Protocol):
    """What a tokenizer does for an encoder."""

    def markup(self, text: str) -> list[int]: ...

    def untrusted(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


class _Python:
    """Through the tokenizer's own methods: for tokenizers written in Python, and those that change encoding there."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def markup(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def untrusted(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


class _Rust:
    """Copies of the tokenizers library's own object, which give the same ids. Through transformers each text costs
    twice the CPU time and wakes a pool of threads, which was most of the rollout loop's cost.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        state = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
        self._tokenizer = Tokenizer.from_str(json.dumps(state))
        self._plain = Tokenizer.from_str(json.dumps(state | {"added_tokens": [], "post_processor": None}))

    def markup(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def untrusted(self, text: str) -> list[int]:
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def _coder(tokenizer: PreTrainedTokenizerBase) -> _Coder:
    kind, usual = type(tokenizer), PreTrainedTokenizerFast
    is_usual = kind._encode_plus is usual._encode_plus and kind._decode is usual._decode if tokenizer.is_fast else False
    return _Rust(tokenizer) if is_usual else _Python(tokenizer)


def _chat_pattern(encoder: Encoder) -> re.Pattern[str]:
    """The special tokens that the chat template names or puts together (`'<|' + role + '|>'`), and those that begin or
    end a text.
    """
    tokenizer = encoder.tokenizer
    written = str(encoder.chat_template or tokenizer.chat_template)
    for roles in (("user",), ("system", "user"), ("user", "assistant", "user")):
        with contextlib.suppress(ConfigError):  # it need not take every order of roles
            written += encoder._render([Message(role=role, content="x") for role in roles], generation_prompt=True)
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    tokens = [
        token.content
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special and token.content.strip() and (number in ends or token.content in written)
    ]
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")


def _check_rendering_ends(encoder: Encoder) -> None:
    """Raise `ConfigError` for a template whose rendering never ends. Its other faults are found where it is used.

    The sandbox bounds neither time nor size. A thread can be abandoned, but if a single operation computes for ever
    inside the interpreter, nothing here can run either.
    """

    def render() -> None:
        with contextlib.suppress(ConfigError):
            encoder._render([Message(role="user", content="x")], generation_prompt=True)

    thread = threading.Thread(target=render, name="ramet-chat-template", daemon=True)
    thread.start()
    thread.join(TEMPLATE_TIMEOUT_S)
    if thread.is_alive():
        raise ConfigError(
            f"model.chat_template: has not rendered a message of one letter within {TEMPLATE_TIMEOUT_S:g} s"
        )


def _end_of_turn(encoder: Encoder) -> int:
    """The first special token after an assistant's message; the end of sequence if there is none."""
    reply = "ramet"
    messages = [Message(role="user", content="x"), Message(role="assistant", content=reply)]
    try:
        tail = encoder._render(messages, generation_prompt=False).rpartition(reply)[2]
    except ConfigError:  # a template that cannot show an assistant's message has no such token
        return encoder.eos_id
    special = {i for i, token in encoder.tokenizer.added_tokens_decoder.items() if token.special} | {encoder.eos_id}
    return next((i for i in encoder.markup(tail) if i in special), encoder.eos_id)
