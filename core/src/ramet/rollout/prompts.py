"""The beginning of a rollout: the system message by rule, then the chat template, as one segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.config.schema import SystemPrompt
from ramet.errors import PluginError
from ramet.plugins import origin
from ramet.plugins.component_checks import is_agent
from ramet.plugins.plugin_code import boundary, defined_at
from ramet.types import Message, Origin, RolloutStep, Segment, SegmentKind, Task, TemplateFormat, ToolSchema

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The inputs of the chat template."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()  # that the template describes; none where the step's system message does


def make_prompt(
    task: Task,
    step: RolloutStep,
    tools: Sequence[ToolSchema],
    rule: SystemPrompt,
    *,
    tools_in_template: bool = False,
    instruction: str = "",
) -> Prompt:
    """The prompt of a task that may use `tools`. Who describes them, the template or the step, is the caller's.

    `instruction`: `rollout_step.instruction`.

    Raises `PluginError` for a step whose `system_prompt` fails or returns no text.
    """
    described, who = () if tools_in_template else tuple(tools), f"rollout step {origin(step)}"
    with boundary(who, "rollout_step", on=" in system_prompt"):
        system = "" if is_agent(step) else step.system_prompt(described)
    if not isinstance(system, str):
        where = defined_at(step, "system_prompt")
        raise PluginError(f"{who}: system_prompt returned {system!r:.80}; return a text, empty for none{where}")
    messages = messages_of(task, system, rule, instruction)
    return Prompt(messages=messages, tools=tuple(tools) if tools_in_template else ())


def describes_tools(step: RolloutStep, configured: bool | None) -> bool:
    """Whether the chat template describes the tools; `configured` is `rollout_step.tools_in_template`."""
    return isinstance(step, TemplateFormat) if configured is None else configured


def messages_of(task: Task, system: str, rule: SystemPrompt, instruction: str = "") -> tuple[Message, ...]:
    """The task's messages with the instruction and the rollout step's system message where the rule puts them."""
    system_texts = [message.content for message in task.prompt if message.role == "system"]
    never = rule is SystemPrompt.NEVER
    system = "\n\n".join(text for text in (instruction, "" if never else system) if text)
    if not system or (system_texts and (never or rule is SystemPrompt.AUTO)):
        return task.prompt
    if rule is SystemPrompt.APPEND:
        system = "\n\n".join([*system_texts, system])
    rest = (message for message in task.prompt if message.role != "system")
    return (Message(role="system", content=system), *rest)


def markup_in(prompt: Prompt, encoder: Encoder) -> int:
    """How many special tokens of the chat template are in the prompt's own texts."""
    return encoder.chat_markup(prompt.messages, prompt.tools)


def prompt_segment(prompt: Prompt, encoder: Encoder) -> Segment:
    ids = encoder.prompt(prompt.messages, prompt.tools)
    return Segment(origin=Origin.INSERTED, kind=SegmentKind.PROMPT, turn=0, text=encoder.decode(ids), token_ids=ids)
