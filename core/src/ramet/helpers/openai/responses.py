"""The replies of servers: their shape, their text, and what they cost in tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.helpers.openai.options import ChatReply

MOST_TOKENS = 1 << 53  # that are counted: a server can say any number


def has_text(path: str, reply: Any) -> bool:
    """Whether a reply of this path has the text that was asked for; it may be from a file that others wrote."""
    try:
        return path != "/chat/completions" or text_of(reply) is not None
    except (KeyError, IndexError, TypeError):
        return False


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
    values = [counted.get(name) for name in ("prompt_tokens", "completion_tokens")]
    first, second = (value if isinstance(value, int) and 0 <= value < MOST_TOKENS else 0 for value in values)
    return first, second
