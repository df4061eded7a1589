"""Whether a written trace keeps the format of tags: asked before a model learns from it.

A trace that breaks the format is cut wrongly into trained and masked parts, and nothing would show it: a result that is
never closed reaches to the end of the next one.

Reasoning may contain calls and their results. The content of a call, an answer or a result is not markup: it may be any
text without the tags at which the turn of a rollout ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ramet.types import TemplateFormat, TraceReader


@dataclass(slots=True, kw_only=True)
class TraceCheck:
    """The findings in one reply. After a fault nothing more is looked for."""

    fault: str | None = None  # the first
    unopened_think: bool = False  # it begins within reasoning, as where the prompt opens it
    has_tags: bool = False  # of the format
    has_answer: bool = False
    called: tuple[str, ...] = ()  # tags of tools that a result follows, each once


@runtime_checkable
class ChecksTraces(TraceReader, Protocol):
    """A rollout step that also finds malformed traces."""

    def check_trace(self, text: str, tools: Sequence[str]) -> TraceCheck:
        """Check a complete reply, results included. It may call other tools than `tools`."""
        ...


@runtime_checkable
class ChecksMessages(TemplateFormat, Protocol):
    """A rollout step that does what `ChecksTraces` does, in the chat template's own form."""

    def check_message(self, text: str, n_results: int, calls: Sequence[str] = ()) -> TraceCheck:
        """Check an assistant's message that `n_results` results follow. `calls`: tools called apart from its text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TagNames:
    think: str
    result: str
    answer: str


def check_tags(text: str, tags: TagNames, tools: Sequence[str]) -> TraceCheck:
    """Check a reply in the format of the step `tags`. A tag that a result follows is a tool's, whatever `tools` are."""
    scan = _Scan(text, tags, tools)
    try:
        scan.run()
    except _FaultFound as fault:
        scan.found.fault = str(fault)
    return scan.found


class _FaultFound(Exception):
    """Ends the scan; its text is the reason."""


class _Scan:
    """One pass over the tags of a reply."""

    def __init__(self, text: str, tags: TagNames, tools: Sequence[str]) -> None:
        self._text, self._tags = text, tags
        own_tags = {tags.think, tags.result, tags.answer}
        followed = re.findall(rf"</([^<>/\s]+)>\s*<{re.escape(tags.result)}>\n?(There is no tool )?", text)
        self.found = TraceCheck(
            called=tuple(dict.fromkeys(n for n, none in followed if not none and n not in own_tags))
        )
        self._tools = {*tools, *(name for name, _ in followed)} - own_tags
        names = "|".join(map(re.escape, sorted(self._tools | own_tags)))
        self._tag = re.compile(rf"<(/?)({names})>")
        self._thinking = False

    def run(self) -> None:
        position = 0
        while (tag := self._tag.search(self._text, position)) is not None:
            position = self._close(tag) if tag[1] else self._open(tag)
            self.found.has_tags = True
        if self._thinking:
            raise _FaultFound(f"<{self._tags.think}> is not closed")

    def _close(self, tag: re.Match[str]) -> int:
        """A closing tag that is not the end of a call, an answer or a result. Returns where to continue."""
        if tag[2] == self._tags.think and not self.found.has_tags:
            self.found.unopened_think = True
        elif tag[2] != self._tags.think or not self._thinking:
            raise _FaultFound(f"</{tag[2]}> without <{tag[2]}> before it")
        self._thinking = False
        return tag.end()

    def _open(self, tag: re.Match[str]) -> int:
        """Return where to continue."""
        name = tag[2]
        if name == self._tags.result:
            return self._result(tag)
        if name == self._tags.think:
            if self._thinking:
                raise _FaultFound(f"<{name}> is not closed before the next <{name}>")
            self._thinking = True
            return tag.end()
        end = self._end_of_content(tag)
        if name == self._tags.answer:
            if self._thinking:
                raise _FaultFound(f"<{name}> inside <{self._tags.think}>")
            self.found.has_answer = True
        elif not self._is_answered(end):
            raise _FaultFound(f"</{name}> without <{self._tags.result}> right after it")
        return end

    def _end_of_content(self, tag: re.Match[str]) -> int:
        """The end of a call or an answer."""
        name, position = tag[2], tag.end()
        while (inner := self._tag.search(self._text, position)) is not None:
            if inner[2] == name and inner[1]:
                return inner.end()
            if inner[1] or inner[2] in (name, self._tags.result):
                following = "the next " if inner[2] == name else ""
                raise _FaultFound(f"<{name}> is not closed before {following}{inner[0]}")
            position = inner.end()
        raise _FaultFound(f"<{name}> is not closed")

    def _is_answered(self, end: int) -> bool:
        """Whether a result follows a call, or nothing does, as where a rollout ended at the limit of its calls."""
        following = re.compile(rf"\s*(<{re.escape(self._tags.result)}>|\Z)")
        return following.match(self._text, end) is not None

    def _result(self, tag: re.Match[str]) -> int:
        opening = tag[0]
        if re.compile(rf"\s*{re.escape(opening)}").match(self._text, tag.end()):
            return tag.end()  # the policy wrote it, and what follows is a rollout's reply to that
        before = tag.start()
        while before > 0 and self._text[before - 1].isspace():
            before -= 1
        allowed = (opening, *(f"</{name}>" for name in self._tools))
        if not self._text.endswith(allowed, 0, before):
            raise _FaultFound(f"{opening} without a call before it")
        close = self._text.find(f"</{tag[2]}>", tag.end())
        if close < 0:
            raise _FaultFound(f"{opening} is not closed")
        if self._text.find(opening, tag.end(), close) >= 0:
            raise _FaultFound(f"{opening} is not closed before the next {opening}")
        return close + len(opening) + 1
