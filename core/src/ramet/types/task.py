"""A task: one question with its gold answer and metadata (a row of the data set)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ramet.types.tool_schema import ToolSchema

FROM_ROW = "from_row"  # the tool that answers calls of a row's own tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. `role` is `system`, `user`, `assistant` or `tool`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of a data set, for a group of rollouts: a prompt and its answer.

    Must be picklable; everything in `metadata` must be JSON.
    """

    id: str  # unique and stable within its data set
    prompt: tuple[Message, ...]
    answer: tuple[str, ...] = ()  # gold answers; matching any of them is right
    data_source: str = ""  # chooses the rewards (configuration `rewards.NAME.sources`)
    tools: tuple[str, ...] | None = None  # names of the tools that this task may use; None: all configured
    metadata: Mapping[str, Any] = field(default_factory=dict)
    schemas: tuple[ToolSchema, ...] | None = None  # of tools that the row itself describes, instead of configured ones

    def __post_init__(self) -> None:
        """Raises `TypeError` for a text where a tuple belongs: it would be taken for a tuple of its letters."""
        if isinstance(self.prompt, str) or not all(isinstance(message, Message) for message in self.prompt):
            raise TypeError(f"prompt is {self.prompt!r:.80}: give a tuple of Message, as user_prompt(text) does")
        for name in ("answer", "tools"):
            if isinstance(value := getattr(self, name), str):
                raise TypeError(f"{name} is the text {value!r:.80}: give a tuple, as {name}=({value!r:.80},)")

    @property
    def question(self) -> str:
        """The last user message."""
        return next((m.content for m in reversed(self.prompt) if m.role == "user"), "")


def user_prompt(text: str) -> tuple[Message, ...]:
    """The prompt of a task that is just one user message."""
    return (Message(role="user", content=text),)
