"""Questions in, rollouts on the screen: with the worker, the prompt and the sampling of training.

Nothing is written, and no run directory is needed. All rollouts begin at the prompt. With a `Talk` as screen, each
question continues the conversation.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ramet.cluster.interfaces import Rollouts
from ramet.cluster.launch import open_rollouts
from ramet.components.build import Components
from ramet.components.checks import check_played
from ramet.components.engines import max_sequence_tokens
from ramet.components.prompts import task_prompts, warn_of_foreign_tags
from ramet.components.toolbox import ToolNames
from ramet.config.checks import check, max_positions
from ramet.config.resolved import Resolved
from ramet.config.schema import ChatMarkup, Config
from ramet.errors import ConfigError, raise_all
from ramet.event_loop import run_async
from ramet.models.encoder import Encoder
from ramet.models.loading import build_encoder
from ramet.models.torch_setup import set_up_torch
from ramet.play.screen import Screen
from ramet.play.talk import Talk
from ramet.rollout.plan import RolloutPlan, RolloutRequest, check_groups
from ramet.tracking.run_log import recording
from ramet.types import Message, Task, user_prompt
from ramet.types.option import SAMPLING

TASK = "play"  # the same for every question: a question has the same seeds wherever it is asked
SLOTS, MARKUP = "engine.params.slots", "data.chat_markup"
LEAST_SLOTS = 4  # that every engine takes


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPlay:
    """The checked parts of a session."""

    config: Config
    components: Components
    tools: ToolNames
    plan: RolloutPlan


def run(
    resolved: Resolved,
    questions: AsyncIterator[str | None],
    screen: Screen,
    *,
    rollouts: int = 1,
    top_p: float = 1.0,
    top_k: int = 0,
    refused: Callable[[ConfigError], None] | None = None,
) -> bool:
    """Run every question; returns whether infrastructure failed in no rollout. None among them begins another
    conversation.

    `refused` is called for a question that makes no prompt (it is too long), and the next one runs; without it the
    error is raised. Raises `ConfigErrors` before anything starts if something is wrong.
    """
    with recording():  # nothing is written: it counts warnings that come again and again, logs their number at the end
        prepared = prepare(_neutral(resolved, screen), rollouts, top_p=top_p, top_k=top_k)
        set_up_torch(prepared.config.run)
        return run_async(_play(prepared, questions, screen, refused))


def prepare(resolved: Resolved, rollouts: int, *, top_p: float = 1.0, top_k: int = 0) -> PreparedPlay:
    """Do all checks, reported together in `ConfigErrors`."""
    config = _fitted(_with_few_slots(resolved, rollouts))
    components = Components(config)
    problems = [
        *_number(rollouts, config),
        *(
            f"--{key.replace('_', '-')} {value}: {problem}"
            for key, value in (("top_p", top_p), ("top_k", top_k))
            if (problem := SAMPLING[key].problem(value))
        ),
        *check(resolved, "play"),
    ]
    tools = check_played(components, config, problems)
    raise_all(dict.fromkeys(problems))
    plan = RolloutPlan(group_size=rollouts, top_p=top_p, top_k=top_k, branch=False, salt="play", step_deadline=False)
    return PreparedPlay(config=config, components=components, tools=tools, plan=plan)


def _number(rollouts: int, config: Config) -> list[str]:
    most = config.rollout.max_concurrent
    return [] if 1 <= rollouts <= most else [
        f"--n {rollouts}: must be at least 1 and at most rollout.max_concurrent={most}"
    ]  # fmt: skip


def _neutral(resolved: Resolved, screen: Screen) -> Resolved:
    """Spell chat markup out in prompts of a conversation: they contain results of tools, as text that may have some."""
    if not isinstance(screen, Talk) or MARKUP in resolved.set_by_user:
        return resolved
    config = copy.deepcopy(resolved.config)
    config.data.chat_markup = ChatMarkup.NEUTRALISE
    return replace(resolved, config=config)


def _with_few_slots(resolved: Resolved, rollouts: int) -> Config:
    """An engine reserves memory for each of its slots, and here few are used. A deterministic run keeps its slots."""
    config = resolved.config
    slots = getattr(config.engine.params, "slots", None)
    if slots is None or config.run.deterministic or SLOTS in resolved.set_by_user:
        return config
    config = copy.deepcopy(config)
    config.engine.params.slots = min(slots, max(LEAST_SLOTS, rollouts))
    return config


def _fitted(config: Config) -> Config:
    """Prompt and response share the positions that the model has: a short prompt leaves more to the response."""
    longest = max_positions(Path(config.model.path))
    wanted = getattr(config.engine.params, "max_tokens", None) or max_sequence_tokens(config)
    if longest is None or wanted <= longest or not hasattr(config.engine.params, "max_tokens"):
        return config
    config = copy.deepcopy(config)
    config.engine.params.max_tokens = longest
    return config


async def _play(
    prepared: PreparedPlay,
    questions: AsyncIterator[str | None],
    screen: Screen,
    refused: Callable[[ConfigError], None] | None,
) -> bool:
    config, all_valid = prepared.config, True
    encoder = build_encoder(config)
    with tempfile.TemporaryDirectory(prefix="ramet-play-") as folder:
        async with open_rollouts(
            config, components=prepared.components, folder=Path(folder), tools=prepared.tools, observer=screen
        ) as rollouts:
            async for question in questions:
                if question is None:
                    _continue_from(screen, ())
                    continue
                task = _task(question, screen)
                try:
                    _check_length(task, encoder, prepared)
                    warn_of_foreign_tags(prepared.components.step, config, [_task(question)], prepared.tools)
                    all_valid &= await _play_one(task, rollouts, prepared, screen)
                except ConfigError as error:
                    if refused is None:
                        raise
                    refused(error)
    return all_valid


async def _play_one(task: Task, rollouts: Rollouts, prepared: PreparedPlay, screen: Screen) -> bool:
    _continue_from(screen, task.prompt)
    groups = await rollouts.run(RolloutRequest(tasks=[task], step=0, plan=prepared.plan))
    check_groups(groups, [task], rollouts.group_size(prepared.plan))
    for rollout in groups[0].rollouts:
        screen.ended(rollout)
    valid = all(rollout.valid for rollout in groups[0].rollouts)
    if not valid:
        _continue_from(screen, task.prompt[:-1])  # as if the question had not been asked
    return valid


def _continue_from(screen: Screen, messages: Sequence[Message]) -> None:
    if isinstance(screen, Talk):
        screen.begin(messages)


def _check_length(task: Task, encoder: Encoder, prepared: PreparedPlay) -> None:
    """Raise `ConfigError` for a prompt that training would leave out, or that leaves no room for a response."""
    prompt = task_prompts(prepared.components.step, prepared.config, prepared.tools)(task)
    n_tokens, most = len(encoder.prompt(prompt.messages, prompt.tools)), prepared.config.data.max_prompt_tokens
    held = getattr(prepared.config.engine.params, "max_tokens", None)
    what, remedy = "the question makes", "ask for less"
    if len(task.prompt) > 1:
        what, remedy = "the conversation with this question makes", "begin another conversation with /new"
    if n_tokens > most:
        raise ConfigError(
            f"data.max_prompt_tokens={most}: {what} a prompt of {n_tokens} tokens, and training leaves out what is "
            f"longer; raise it, or {remedy}"
        )
    if held is not None and n_tokens >= held:
        raise ConfigError(
            f"{what} a prompt of {n_tokens} tokens, and model and engine have room for {held} with the "
            f"response; {remedy}"
        )


def _task(question: str, screen: Screen | None = None) -> Task:
    asked = user_prompt(question)
    return Task(id=TASK, prompt=screen.prompt(*asked) if isinstance(screen, Talk) else asked)
