"""A tool's text, fit for the model: without control characters, and with no more tokens than allowed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

CUT = "\n[... cut ...]\n"
CHARS_PER_TOKEN = 32  # no more characters than this per allowed token are ever tokenised
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def fit(text: str, max_tokens: int, encoder: Encoder) -> tuple[str, bool]:
    """The text as the model may see it, and whether it was cut.

    Three quarters of the kept text come from the head and one from the tail: errors are at the end.
    """
    window = max_tokens * CHARS_PER_TOKEN
    if len(text) > window:
        return _cut(visible(text[:window]), visible(text[-window:]), max_tokens, encoder), True
    shown = visible(text)
    if len(encoder.untrusted(shown)) <= max_tokens:
        return shown, False
    return _cut(shown, shown, max_tokens, encoder), True


def visible(text: str) -> str:
    """Line ends become newlines; other control characters and lone surrogates are written out, as in `\\x1b`."""
    if text.replace("\n", " ").isprintable():  # nearly always, and much faster than the expression
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape", "backslashreplace").decode("ascii"), text)


def _cut(head: str, tail: str, max_tokens: int, encoder: Encoder) -> str:
    head_ids, tail_ids = encoder.untrusted(head), encoder.untrusted(tail)
    room = max(0, max_tokens - len(encoder.untrusted(CUT)))
    while True:
        n_tail = room // 4
        first = encoder.decode(head_ids[: room - n_tail]).rstrip("\ufffd")
        last = encoder.decode(tail_ids[len(tail_ids) - n_tail :]).lstrip("\ufffd")
        joined = f"{first}{CUT}{last}"
        excess = len(encoder.untrusted(joined)) - max_tokens  # cut text may tokenise to more than it was cut from
        if excess <= 0 or room == 0:
            return joined
        room = max(0, room - excess)
