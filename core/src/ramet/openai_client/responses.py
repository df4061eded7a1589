"""The replies of servers: their shape, their text, and what they cost in tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.openai_client.http import AttemptFailed, without_password
from ramet.openai_client.options import ChatReply
from ramet.openai_client.servers import Server


def check_shape(path: str, server: Server, reply: Mapping[str, Any]) -> None:
    """A reply without its text is as good as none. Raises `AttemptFailed`."""
    if path == "/chat/completions":
        try:
            text_of(reply)
        except (KeyError, IndexError, TypeError) as error:
            raise AttemptFailed(
                f"{without_password(server.url)}{path}: the reply has no choices[0].message.content"
            ) from error


def text_of(reply: Mapping[str, Any]) -> str:
    content = reply["choices"][0]["message"]["content"]
    if not isinstance(content, str | None):
        raise TypeError(type(content).__name__)
    return content or ""


def chat_reply(reply: Mapping[str, Any], *, cached: bool, accepted: bool) -> ChatReply:
    tokens_in, tokens_out = tokens(reply)
    return ChatReply(
        text=text_of(reply),
        finish=str(reply["choices"][0].get("finish_reason") or ""),
        model=str(reply.get("model") or ""),
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cached=cached,
        accepted=accepted,
    )


def tokens(reply: Mapping[str, Any]) -> tuple[int, int]:
    usage = reply.get("usage")
    counted = usage if isinstance(usage, dict) else {}
    found = [counted.get(name) for name in ("prompt_tokens", "completion_tokens")]
    first, second = (value if isinstance(value, int) else 0 for value in found)
    return first, second
