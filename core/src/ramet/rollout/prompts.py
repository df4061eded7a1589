"""A task's prompt as one segment: the system message by rule, then the chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramet.config.schema import SystemPrompt
from ramet.types import Message, Origin, Segment, SegmentKind, Task

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder


def messages_of(task: Task, system: str, rule: SystemPrompt) -> tuple[Message, ...]:
    """The task's messages with the rollout step's system message where the rule puts it."""
    brings_its_own = any(message.role == "system" for message in task.prompt)
    if rule is SystemPrompt.NEVER or not system or (brings_its_own and rule is SystemPrompt.AUTO):
        return task.prompt
    rest = (message for message in task.prompt if message.role != "system")
    return (Message(role="system", content=system), *rest)


def prompt_segment(messages: Sequence[Message], encoder: Encoder) -> Segment:
    ids = encoder.prompt(messages)
    return Segment(origin=Origin.INSERTED, kind=SegmentKind.PROMPT, turn=0, text=encoder.decode(ids), token_ids=ids)
