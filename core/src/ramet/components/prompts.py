"""The prompts of a run's tasks, and tags in them that name no tool of the run.

A model whose prompt names a tool that does not exist invents its results. Such a configured system prompt is refused;
for prompts of tasks, one warning lists the tags and the tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ramet.components.toolbox import ToolNames
from ramet.config.schema import Config, SystemPrompt
from ramet.errors import ConfigError, collected
from ramet.plugins.component_checks import is_agent
from ramet.rollout.gateway.calls import call_reader
from ramet.rollout.prompts import Prompt, describes_tools, make_prompt
from ramet.types import Message, RolloutStep, Task, TemplateFormat, ToolSchema

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

logger = logging.getLogger(__name__)
SHOWN = 3  # ids of tasks listed for each tag


@runtime_checkable
class ReadsTags(Protocol):
    """Offered by rollout steps that call tools by tags, which a prompt may name."""

    def foreign_tags(self, messages: Sequence[Message], tools: Sequence[str]) -> list[str]:
        """Names of tags in these messages that belong to none of `tools`, nor to the step itself."""
        ...


def task_prompts(step: RolloutStep, config: Config, tools: ToolNames) -> Callable[[Task], Prompt]:
    """A function that builds the prompt of a task from `rollout_step` and the tools that the task may use."""
    rule = config.rollout_step
    in_template = describes_tools(step, rule.tools_in_template)

    def prompt(task: Task) -> Prompt:
        return make_prompt(
            task,
            step,
            tools.of(task),
            rule.system_prompt,
            tools_in_template=in_template,
            instruction=rule.instruction,
        )

    return prompt


@runtime_checkable
class NamesStops(Protocol):
    """Offered by rollout steps that end turns at strings."""

    def stop_strings(self, tools: Sequence[ToolSchema], prompt: Sequence[Message]) -> Sequence[str]: ...


def prompt_record(step: RolloutStep, config: Config, tools: ToolNames, task: Task) -> dict[str, Any]:
    """Inputs for using a model as it was trained on `task`: system messages, tools, stops, sampling; JSON.

    Tools that rows describe are not among them: each row has others.
    """
    task = task if task.schemas is None else replace(task, schemas=())
    prompt = task_prompts(step, config, tools)(task)
    stop = step.stop_strings(tools.of(task), prompt.messages) if isinstance(step, NamesStops) else ()
    return {
        "messages": [
            {"role": message.role, "content": message.content}
            for message in prompt.messages
            if message.role == "system"
        ],
        "tools": [tool.function for tool in prompt.tools] if task.schemas is None else [],
        "tools_of_rows": task.schemas is not None,
        "stop": list(stop),
        "sampling": {"temperature": config.rollout.temperature},
    }


def check_prompts(step: RolloutStep, config: Config, tools: ToolNames, *, for_agent: bool = False) -> list[str]:
    """Problems of the prompts that no task causes. If there is a tokenizer, it must be possible to load it.

    `for_agent`: the configured step is an agent, whose traces `step` reads.
    """
    from ramet.models.check import has_tokenizer  # torch: looking at data without a model needs none

    problems: list[str] = []
    with collected(problems):
        problems += _template_problems(step, config, tools, for_agent) if has_tokenizer(config.model) else []
    if isinstance(step, ReadsTags):
        names = list(tools.schemas)
        try:
            system = Message(role="system", content=step.system_prompt(tools.allowed(None)))
        except ConfigError as error:  # names of tools that cannot be tags
            return [*problems, str(error)]
        own = Message(role="system", content=config.rollout_step.instruction)
        if foreign := step.foreign_tags([own], names):
            problems.append(
                f"rollout_step.instruction: names tags of no configured tool: {', '.join(foreign)}; configured: "
                f"{', '.join(names) or 'none'}; name tags of no tool in rollout_step.params.other_tags"
            )
        if foreign := step.foreign_tags([system], names):
            problems.append(
                f"rollout_step={config.rollout_step.name}: the system prompt that it makes of the tools' descriptions "
                f"names tags of no configured tool: {', '.join(foreign)}; configured: {', '.join(names) or 'none'}"
            )
    return problems


def _template_problems(step: RolloutStep, config: Config, tools: ToolNames, for_agent: bool) -> list[str]:
    """Return what the step leaves to the chat template, and it does not do."""
    from ramet.models.loading import build_encoder

    encoder = build_encoder(config)
    if is_agent(step):
        return call_problems(encoder)
    if encoder.template.writes_the_date():
        logger.warning(
            "model.chat_template: writes today's date into every prompt, so a run that is continued tomorrow has other "
            "prompts; set it, where the template reads a variable for it, as in "
            "model.chat_template_kwargs.date_string='26 Jul 2024', or give another template"
        )
    rule, problems = config.rollout_step, []
    if describes_tools(step, rule.tools_in_template) and not encoder.template.describes_tools():
        if rule.tools_in_template:
            cause, remedy = "rollout_step.tools_in_template=true", "let the rollout step describe the tools"
        elif for_agent:
            cause = f"rollout_step={rule.name} (an agent, whose tools the policy sees only by the template)"
            remedy = "set rollout_step.tools_in_template=false for an agent without tools"
        else:
            cause = f"rollout_step={rule.name}"
            remedy = "set rollout_step.tools_in_template=false to have the rollout step describe the tools"
        problems = [
            f"{cause}: the chat template describes no tools; name the file of one that does, such as Qwen2.5's, as "
            f"model.chat_template, or {remedy}"
        ]
    if isinstance(step, TemplateFormat) and tools.schemas:
        try:
            encoder.suffix(step.results(["1", "2"]), after=-1)
        except ValueError as error:
            problems.append(f"rollout_step={rule.name}: {error}; give another one as model.chat_template")
    return problems


def call_problems(encoder: Encoder) -> list[str]:
    """Return a problem if the chat template teaches tool calls that the gateway does not read."""
    problems: list[str] = []
    with collected(problems):
        call_reader(encoder)
        if not encoder.template.describes_tools():
            logger.warning(
                "model.chat_template: shows no tools, so the policy never sees an agent's tools; give a template that "
                "does"
            )
    return problems


def foreign_tags(step: RolloutStep, config: Config, tasks: Iterable[Task], tools: ToolNames) -> dict[str, list[str]]:
    """Tag -> ids of the tasks whose prompt names it, though it belongs to no tool that the task may use."""
    prompt = task_prompts(step, config, tools)
    ids_by_tag: dict[str, list[str]] = {}
    if isinstance(step, ReadsTags):
        for task in tasks:
            allowed = [schema.name for schema in tools.of(task)]
            for tag in step.foreign_tags(prompt(task).messages, allowed):
                ids_by_tag.setdefault(tag, []).append(task.id)
    return ids_by_tag


def describe_promised_tags(ids_by_tag: dict[str, list[str]]) -> str:
    """The result of `foreign_tags` in one line, where no tools were configured because they must not be used."""
    return (
        f"prompts of tasks name tags in the form of tool tags: {_counted(ids_by_tag)}. No tool is configured here: "
        "name the tools of the run, as in tools=[NAME], to see which tags none of them serves"
    )


def describe_foreign_tags(ids_by_tag: dict[str, list[str]], config: Config, tools: ToolNames) -> str:
    """The result of `foreign_tags` in one line."""
    other_tags = "name tags of no tool in rollout_step.params.other_tags"
    is_set = config.rollout_step.system_prompt is SystemPrompt.ALWAYS
    ways = f"or {other_tags}" if is_set else f"{other_tags}, or set rollout_step.system_prompt=always"
    return (
        f"prompts of tasks name tags of no tool that they may use: {_counted(ids_by_tag)}; configured: "
        f"{', '.join(tools.schemas) or 'none'}. A call of one is answered with an error. Configure the tool, {ways}"
    )


def _counted(ids_by_tag: dict[str, list[str]]) -> str:
    return "; ".join(
        f"<{tag}> in {len(ids)} ({', '.join(ids[:SHOWN])}{', …' if len(ids) > SHOWN else ''})"
        for tag, ids in ids_by_tag.items()
    )


def warn_of_foreign_tags(
    step: RolloutStep, config: Config, tasks: Iterable[Task], tools: ToolNames
) -> dict[str, list[str]]:
    """Log what `foreign_tags` finds, and return it."""
    if ids_by_tag := foreign_tags(step, config, tasks, tools):
        logger.warning("%s", describe_foreign_tags(ids_by_tag, config, tools))
    return ids_by_tag
