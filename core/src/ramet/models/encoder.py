"""Text to token ids and back: the one encoder that SFT and rollouts share.

Markup is text of the protocol: tags in it become the special tokens that they name. Untrusted text comes from outside
(tool results): whatever it contains, it must not become an added or special token, or a web page could close a result
or pose as the user. Therefore untrusted text goes through a second tokenizer that does not know those tokens.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ramet.config.schema import ChatMarkup
from ramet.errors import ConfigError
from ramet.models.chat_template import ChatTemplate
from ramet.types import Insert, Markup, Message, ToolSchema, Untrusted

THREADS = "TOKENIZERS_PARALLELISM"  # "false": the tokenizers library starts no pool of threads
END_OF_CALL = "<|eom_id|>"  # ends a message of Llama 3.1 that calls a tool, where others end with `<|eot_id|>`


class Encoder:
    """Encodes prompts, markup and untrusted text. Never adds a token that is not in the text, such as BOS.

    `end_of_turn_id` is the token with which the chat template ends an assistant's message. It may be another one than
    the tokenizer's end of sequence: `<|im_end|>` and `<|endoftext|>` in Qwen2.5's base models. `eos_ids` has both, the
    tokenizer's first, `<|eom_id|>` of Llama 3.1, and `ends`, which the model's folder names; a message ends with any of
    them. `vocab_size` counts the tokenizer's tokens; a model's head may have more rows.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: str | None = None,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        chat_markup: ChatMarkup = ChatMarkup.KEEP,
        ends: Iterable[int] = (),
    ) -> None:
        if tokenizer.eos_token_id is None:
            raise ConfigError("model.tokenizer: the tokenizer has no end-of-sequence token")
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, chat_template, template_kwargs or {})
        self._rule = chat_markup
        self._coder = _coder(tokenizer)
        self._wrapper = lru_cache(maxsize=256)(self.markup)  # few texts, inserted again and again
        self._suffix = lru_cache(maxsize=64)(self.template.after_reply)
        self._plain = lru_cache(maxsize=16)(self._without_special)  # a result is measured first, and inserted then
        self.vocab_size: int = len(tokenizer)
        self.eos_id: int = tokenizer.eos_token_id
        self.pad_id: int = self.eos_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._chat = self.template.special_tokens()
        added = tokenizer.added_tokens_decoder
        self.end_of_turn_id: int = self._end_of_turn()
        self._call_ends = tuple(i for i, token in added.items() if token.content == END_OF_CALL)
        self.eos_ids: tuple[int, ...] = tuple(
            dict.fromkeys((self.eos_id, self.end_of_turn_id, *self._call_ends, *ends))
        )
        self._reserved = frozenset(tokenizer.all_special_ids) | frozenset(added)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, foreign: bool = False
    ) -> array[int]:
        """The chat template with the generation prompt: everything before the assistant's first token.

        `tools` are those that the template describes. `foreign`: the texts come from outside, so their chat markup is
        spelled out whatever `data.chat_markup` says.
        """
        if (foreign or self._rule is ChatMarkup.NEUTRALISE) and self.chat_markup(messages, tools):
            return self._neutral(messages, tools)
        return self.markup(self.template.render(messages, tools, generation_prompt=True))

    def suffix(self, messages: Sequence[Message], *, after: int) -> list[Insert]:
        """The chat template's text after an assistant's message for `messages`, generation prompt included.

        Contents are `Untrusted` (spelled as JSON where the template does that), the template's own text `Markup`. If
        the policy ended its message itself (`after`, the last token so far, is the one that the template ends it with),
        that token is left out. Raises `ValueError` for no messages and for roles that the template does not take.
        """
        if not messages:
            raise ValueError("it needs at least one message")
        around = self._suffix(tuple(message.role for message in messages))
        ids = self._wrapper(around.texts[0])
        ended = len(ids) > 0 and after in (ids[0], *self._call_ends)
        parts: list[Insert] = [Markup(text=self.decode(ids[1:]) if ended else around.texts[0])]
        for message, spelled, text in zip(messages, around.spelling, around.texts[1:], strict=True):
            parts += [Untrusted(text=spelled(message.content)), Markup(text=text)]
        return [part for part in parts if part.text]

    def chat_markup(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> int:
        """How many special tokens of the chat template are in the own text of messages and tools."""
        return sum(len(self._chat.findall(text)) for text in _texts(messages, tools))

    def _neutral(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> array[int]:
        """Return the ids that `prompt` returns, with chat markup in messages and tools spelled out.

        The template is given a placeholder for each.
        """
        fence, end, spelled = "\ue000", "\ue001", list[str]()
        while any(fence in text for text in _texts(messages, tools)):
            fence += "\ue000"

        def placeholder(match: re.Match[str]) -> str:
            spelled.append(match[0])
            return f"{fence}{len(spelled) - 1}{end}"

        fenced = [replace(message, content=self._chat.sub(placeholder, message.content)) for message in messages]
        described = [
            ToolSchema(**_with_texts(tool.function["function"], lambda text: self._chat.sub(placeholder, text)))
            for tool in tools
        ]
        # Every second part is the number of a placeholder.
        parts = re.split(f"{fence}(\\d+){end}", self.template.render(fenced, described, generation_prompt=True))
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
        return self._plain(text)[:]

    def _without_special(self, text: str) -> array[int]:
        ids = self._coder.untrusted(text)
        if self._reserved.isdisjoint(ids):
            return array("i", ids)
        if len(text) <= 1:
            return array("i", [i for i in ids if i not in self._reserved])
        middle = len(text) // 2  # some vocabularies spell special tokens themselves: cut until none is complete
        return self._without_special(text[:middle]) + self._without_special(text[middle:])

    def insert(self, part: Insert) -> array[int]:
        """Token ids of what a rollout step inserts."""
        return (self._wrapper if isinstance(part, Markup) else self._plain)(part.text)[:]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, special tokens kept, nothing cleaned up. Ids that no token has are left out."""
        return self._coder.decode(list(ids))

    def _end_of_turn(self) -> int:
        """The first special token after an assistant's message; the end of sequence without one."""
        tail = self.template.reply_end()
        added = self.tokenizer.added_tokens_decoder
        special = {i for i, token in added.items() if token.special} | {self.eos_id}
        return next((i for i in self.markup(tail or "") if i in special), self.eos_id)


def _texts(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Iterator[str]:
    yield from (message.content for message in messages)
    yield from (json.dumps(tool.function, ensure_ascii=False, default=str) for tool in tools)


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """JSON with every text and key changed."""
    if isinstance(value, Mapping):
        return {change(str(key)): _with_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


class _Coder(Protocol):
    """The methods of a tokenizer that an encoder uses."""

    def markup(self, text: str) -> list[int]: ...

    def untrusted(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


class _Python:
    """Encode by the tokenizer's own methods: for tokenizers written in Python, and those that change encoding there."""

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
    twice the CPU time and wakes a pool of threads, which was most of the rollout loop's cost. Where the pool is turned
    off, as the command line does, the call without positions of characters is used: it takes a fifth less.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        state = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
        self._tokenizer = Tokenizer.from_str(json.dumps(state))
        self._plain = Tokenizer.from_str(json.dumps(state | {"added_tokens": [], "post_processor": None}))
        self._is_alone = os.environ.get(THREADS) == "false"

    def markup(self, text: str) -> list[int]:
        return self._ids(self._tokenizer, text)

    def untrusted(self, text: str) -> list[int]:
        return self._ids(self._plain, text)

    def _ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        if self._is_alone:
            return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def _coder(tokenizer: PreTrainedTokenizerBase) -> _Coder:
    kind, usual = type(tokenizer), PreTrainedTokenizerFast
    is_usual = kind._encode_plus is usual._encode_plus and kind._decode is usual._decode if tokenizer.is_fast else False
    return _Rust(tokenizer) if is_usual else _Python(tokenizer)
