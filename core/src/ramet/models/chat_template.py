"""A model's chat template: the text that it makes of conversations. It comes from outside, like the model itself."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ramet.errors import ConfigError
from ramet.io.json_values import cut
from ramet.types import Message, ToolSchema

TIMEOUT_S = 20.0  # for the first rendering
RENDERED_CHARS, RENDERED_RATIO = 1_000_000, 16  # limit of a rendered conversation, and what each of its characters adds


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """The template's own text around the contents of messages, and how it spells each of them."""

    texts: tuple[str, ...]  # before, between and after the contents
    spelling: tuple[Callable[[str], str], ...]


class ChatTemplate:
    """Renders conversations. `text` None: the tokenizer's own template; `kwargs` are variables that it reads."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: str | None, kwargs: Mapping[str, Any]) -> None:
        """Raises `ConfigError` if a rendering never ends. Other faults are found where the template is used."""
        self._tokenizer = tokenizer
        self._text = text
        self.kwargs = dict(kwargs)
        _check_rendering_ends(self)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, generation_prompt: bool) -> str:
        """Raises `ConfigError` for what the template does not take. `tools` are those that it describes."""
        rows = [{"role": message.role, "content": message.content} for message in messages]
        return self._render(rows, tools, generation_prompt=generation_prompt)

    def _render(
        self,
        rows: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema] = (),
        *,
        generation_prompt: bool,
        **functions: Any,
    ) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(row) for row in rows],
                tools=[tool.function for tool in tools] or None,
                chat_template=self._text,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                **self.kwargs,
                **functions,
            )
        except (TemplateError, ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
            reason = "it needs more memory than there is" if isinstance(error, MemoryError) else error
            roles = [row["role"] for row in rows]
            raise ConfigError(
                f"model.chat_template: cannot render a conversation of roles {cut(roles, 200)}: {reason}"
            ) from error
        assert isinstance(text, str)
        source_chars = sum(len(row["content"]) + len(str(row.get("tool_calls", ""))) for row in rows)
        source_chars += sum(len(str(tool.function)) for tool in tools)
        if len(text) > (most := RENDERED_CHARS + RENDERED_RATIO * source_chars):
            raise ConfigError(
                f"model.chat_template: makes {len(text)} characters of a conversation of {source_chars}; "
                f"at most {most} are read"
            )
        return text

    def after_reply(self, roles: Sequence[str]) -> Between:
        """The text after an assistant's message for messages of these roles, generation prompt included.

        Raises `ValueError` for roles that the template does not take, or whose contents it leaves out.
        """
        # Contents that a template will hardly contain: its own text is rendered between them. Some change them: they
        # spell them as JSON, or leave out space around them.
        reply, contents = "ramet-said", [f'\n ramet-"mark"\n{number}. \n' for number in range(len(roles))]
        messages = [Message(role="user", content="x"), Message(role="assistant", content=reply)]
        messages += [Message(role=role, content=content) for role, content in zip(roles, contents, strict=True)]
        try:
            rest = self.render(messages, generation_prompt=True).rpartition(reply)[2]
        except ConfigError as error:
            raise ValueError(f"the chat template does not take messages of roles {list(roles)}: {error}") from error
        texts, spelling = [], []
        for role, content in zip(roles, contents, strict=True):
            spelled = next((spell for spell in (str, _in_json, str.strip) if spell(content) in rest), None)
            if spelled is None:
                raise ValueError(f"the chat template leaves out messages of role {role!r}")
            text, _, rest = rest.partition(spelled(content))
            texts.append(text)
            spelling.append(spelled)
        return Between(texts=(*texts, rest), spelling=tuple(spelling))

    def describes_tools(self) -> bool:
        """Whether a prompt shows the tools that the template is given. Raises `ConfigError` if it does not take any."""
        text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        tool = ToolSchema(name="ramet_tool", description="Returns its input.", parameters=text)
        return tool.name in self.render([Message(role="user", content="x")], [tool], generation_prompt=True)

    def writes_the_date(self) -> bool:
        """Whether prompts have today's date, so that tomorrow's differ."""

        def date(form: str) -> str:
            return "ramet-date"

        rows = [{"role": "user", "content": "x"}]
        with contextlib.suppress(ConfigError):
            return date("") in self._render(rows, generation_prompt=True, strftime_now=date)
        return False

    def reply_end(self) -> str | None:
        """The text after the content of an assistant's message; None if the template cannot show one."""
        reply = "ramet"
        messages = [Message(role="user", content="x"), Message(role="assistant", content=reply)]
        try:
            return self.render(messages, generation_prompt=False).rpartition(reply)[2]
        except ConfigError:
            return None

    def reply(self, text: str, calls: Sequence[Mapping[str, Any]]) -> str:
        """An assistant's message with these calls (`name`, `arguments`): what follows the generation prompt, without
        what ends every message of its role.

        As the template has it where results follow: of a last message Qwen3's makes one with empty thoughts, which
        the policy is not shown when it reads its own calls. Only where the generation prompt itself begins or skips the
        thoughts does the message continue from there.

        Raises `ConfigError` for a template that does not take them, or leaves the text out.
        """
        functions = [{"type": "function", "function": dict(call)} for call in calls]
        message = {"role": "assistant", "content": text, "tool_calls": functions}
        with contextlib.suppress(ConfigError):  # it need not take results
            if (said := self._said(message, ["tool"] * len(calls))) is not None:
                return said
        if (said := self._said(message, [])) is None:
            raise ConfigError(
                "model.chat_template: does not show an assistant's text together with its `tool_calls`; name the file "
                "of a template that does, such as Qwen2.5's, or take rollout_step=tags"
            )
        return said

    def content(self, text: str, calls: Sequence[Mapping[str, Any]]) -> str:
        """The content by which an assistant's message is shown as one with this text and these calls (`name`,
        `arguments`). Unlike `reply` it need not follow the generation prompt, which may begin the thoughts, and
        templates are served that take arguments as JSON text, as DeepSeek's do.

        Raises `ConfigError` as `reply` does.
        """
        for spelled in (_unchanged, _as_json_text):
            functions = [
                {"type": "function", "function": {**call, "arguments": spelled(call["arguments"])}} for call in calls
            ]
            message = {"role": "assistant", "content": text, "tool_calls": functions}
            for roles in (["tool"] * len(calls), []):
                with contextlib.suppress(ConfigError):
                    if (said := self._said(message, roles, as_content=True)) is not None:
                        return said
        return self.reply(text, calls)

    def _said(self, message: Mapping[str, Any], followers: Sequence[str], *, as_content: bool = False) -> str | None:
        """The part of an assistant's message between the generation prompt and its end, before messages of these
        roles; None if the template shows it otherwise, or not all of it. `as_content`: what stands in the place of
        its content.
        """
        mark, user = "ramet-said", {"role": "user", "content": "x"}
        rest = [{"role": role, "content": "ramet-result"} for role in followers]
        plain = self._render([user, {"role": "assistant", "content": mark}, *rest], generation_prompt=False)
        start, _, end = plain.rpartition(mark)
        before = start if as_content else self._render([user], generation_prompt=True)
        whole = self._render([user, message, *rest], generation_prompt=False)
        said = whole.removeprefix(before).removesuffix(end)
        shown = "".join(said.split())
        wanted = [str(message["content"]), *(str(call["function"]["name"]) for call in message["tool_calls"])]
        is_whole = whole.startswith(before) and whole.endswith(end)
        return said if is_whole and all("".join(part.split()) in shown for part in wanted) else None

    def special_tokens(self) -> re.Pattern[str]:
        """The special tokens that the template names or puts together (`'<|' + role + '|>'`), and those that begin or
        end a text.
        """
        tokenizer = self._tokenizer
        written = str(self._text or tokenizer.chat_template)
        for roles in (("user",), ("system", "user"), ("user", "assistant", "user")):
            with contextlib.suppress(ConfigError):  # it need not take every order of roles
                written += self.render([Message(role=role, content="x") for role in roles], generation_prompt=True)
        ends = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
        tokens = [
            token.content
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special and token.content.strip() and (number in ends or token.content in written)
        ]
        return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")


def _unchanged(arguments: Any) -> Any:
    return arguments


def _as_json_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _in_json(text: str) -> str:
    """Return a text as templates with `tojson` write it, without the quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _check_rendering_ends(template: ChatTemplate) -> None:
    """The sandbox bounds neither time nor size. A thread can be abandoned, but if a single operation computes for ever
    inside the interpreter, nothing here can run either.
    """

    def render() -> None:
        with contextlib.suppress(ConfigError):
            template.render([Message(role="user", content="x")], generation_prompt=True)

    thread = threading.Thread(target=render, name="ramet-chat-template", daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    if thread.is_alive():
        raise ConfigError(f"model.chat_template: has not rendered a message of one letter within {TIMEOUT_S:g} s")
