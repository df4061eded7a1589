"""Jobs of tasks: the tools that each task may use, its prompt, and the stored prefixes that it may start from.

All problems of them are found here, before anything runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.config.schema import RolloutConfig, SystemPrompt
from ramet.engines.protocol import Engine
from ramet.errors import ConfigError
from ramet.plugins.component_checks import is_agent
from ramet.rollout.plan import GrantedGroup, RolloutRequest
from ramet.rollout.prefixes import StoredPrefix, begin_problems, prefixes_with_room, prompt_problems
from ramet.rollout.prompts import make_prompt, prompt_segment
from ramet.types import RolloutStep, Segment, Task, ToolSchema
from ramet.types.task import FROM_ROW

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJob:
    """One task whose group of rollouts is to be run."""

    task: Task
    name: str  # the task's part of rollout keys; unique within the step
    step: int
    prompt: Segment
    prefixes: tuple[StoredPrefix, ...] = ()  # that the policy may start from
    begin: StoredPrefix | None = None  # where its roots begin; None: at the prompt
    granted: GrantedGroup | None = None  # by a step budget


class JobMaker:
    """Makes the jobs of one worker."""

    def __init__(
        self,
        *,
        engine: Engine,
        encoder: Encoder,
        step: RolloutStep,
        schemas: Mapping[str, ToolSchema],
        tool_sets: Mapping[str, Sequence[str]],
        config: RolloutConfig,
        system_prompt: SystemPrompt,
        tools_in_template: bool,
        takes_prefixes: bool,
        instruction: str = "",
    ) -> None:
        """`schemas`: of all tools that are configured. `takes_prefixes`: the branch policy starts from stored ones."""
        self._engine = engine
        self._encoder = encoder
        self._step = step
        self._known = dict(schemas)
        self._tool_sets = tool_sets
        self._config = config
        self._system_prompt = system_prompt
        self._tools_in_template = tools_in_template
        self._takes_prefixes = takes_prefixes
        self._instruction = instruction

    def tools_of(self, task: Task) -> list[str]:
        """Names of the tools that the task may use; none where an agent brings its own."""
        if is_agent(self._step):
            return []
        if task.schemas is not None:
            return [FROM_ROW] if task.schemas else []
        if task.tools is None:
            return [name for name in self._known if name != FROM_ROW]
        return expanded(task.tools, self._tool_sets)

    def schemas_of(self, task: Task) -> tuple[ToolSchema, ...]:
        if task.schemas is not None and not is_agent(self._step):
            return task.schemas
        return tuple(self._known[name] for name in self.tools_of(task))

    def unknown_tools(self, tasks: Sequence[Task]) -> list[str]:
        """A problem for each tool that tasks name and that is not configured."""
        if is_agent(self._step):
            return []
        named = (
            name
            for task in tasks
            for name in (expanded(task.tools or (), self._tool_sets) if task.schemas is None else self.tools_of(task))
        )
        missing = Counter(name for name in named if name not in self._known)
        configured = ", ".join(self._known) or "none"
        return [
            f"tools: {n} task(s) may use {name!r}, which is not configured; configured: {configured}"
            for name, n in missing.items()
        ]

    def jobs(self, request: RolloutRequest) -> list[GroupJob]:
        """One for each task, in order. Raises `ConfigError` with all prompts that cannot be used."""
        jobs, problems = [], []
        room = self._engine.info.max_tokens
        granted: Sequence[GrantedGroup | None] = request.granted or [None] * len(request.tasks)
        for task, name, group in zip(request.tasks, request.task_names(), granted, strict=True):
            prompt = self._prompt(task)
            kept = request.stored.get(task.id) if request.plan.branch else None
            prefixes = () if kept is None or not self._takes_prefixes else prefixes_with_room(kept, self._config)
            begin = request.begin if group is None or group.prefix is None else prefixes[group.prefix]
            jobs.append(
                GroupJob(
                    task=task,
                    name=name,
                    step=request.step,
                    prompt=prompt,
                    prefixes=prefixes,
                    begin=begin,
                    granted=group,
                )
            )
            if kept is not None:
                problems += prompt_problems(kept.step, kept.group.rollouts[0].rollout, prompt)
            if request.begin is not None:
                problems += begin_problems(request.begin, prompt, self._config)
            if len(prompt) >= room:
                problems.append(
                    f"data: the prompt of task {task.id!r} has {len(prompt)} tokens, the engine {room} with the "
                    "response; lower data.max_prompt_tokens or raise the engine's max_tokens"
                )
        if problems:
            raise ConfigError("\n".join(problems))
        return jobs

    def _prompt(self, task: Task) -> Segment:
        prompt = make_prompt(
            task,
            self._step,
            self.schemas_of(task),
            self._system_prompt,
            tools_in_template=self._tools_in_template,
            instruction=self._instruction,
        )
        return prompt_segment(prompt, self._encoder)


def expanded(names: Sequence[str], sets: Mapping[str, Sequence[str]]) -> list[str]:
    """Names of tools, each once; the name of a set becomes the names of all its tools."""
    return list(dict.fromkeys(tool for name in names for tool in sets.get(name, (name,))))
