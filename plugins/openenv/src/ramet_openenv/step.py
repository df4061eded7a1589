"""The rollout step `openenv`: each rollout is an episode of an environment on an OpenEnv server.

An observation becomes a message: of role `tool` after an action that was a tool call, else of role `user`. Its text is
untrusted. What the policy does wrong (no action, one that does not fit, one that the environment refuses) is a message
that says so, with a reward of `mistake_reward`, and so is an action at which the environment fails. A server that has
ended, or that fails before an action, masks the rollout.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, cast

from ramet import (
    ConfigError,
    InfraError,
    Message,
    RolloutState,
    StepContext,
    StepResult,
    StopReason,
    Task,
    ToolSchema,
    run_blocking,
)
from ramet.helpers import inert_results, message_of
from ramet_openenv.actions import Actions, Mistake, actions_of
from ramet_openenv.config import OpenEnvConfig
from ramet_openenv.server import OpenEnvServer
from ramet_openenv.session import ActionFailed, ActionRefused, NoPlace, NoReply, OpenEnvReply, OpenEnvSession

METADATA = "metadata"  # of an observation: for the host, not for the policy
RESET = "reset"  # the column of a task with arguments of its reset
SEED_BITS = 31  # what every generator takes
TRANSPORT = "transport_error"  # `ToolErrorType` of openenv 0.10.0, core/env_server/mcp_types.py
PLACE_S = 1.0  # between two attempts at a server without a free place
CUT = "\n[... cut ...]"

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Episode:
    """The state of a rollout."""

    session: OpenEnvSession
    first: OpenEnvReply
    owed: float  # the reward of the reset, which the first turn gets


class OpenEnvStep:
    """`Environment`."""

    def __init__(self, config: OpenEnvConfig) -> None:
        self.config = config
        self.forks = cast(Literal["replay", "none"], config.forks)
        self._server = OpenEnvServer(config)
        self._known: Actions | None = None
        self._has_warned = False  # of a failed action

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        """How the policy acts. The first call asks the server; tools of the run are not used.

        Raises `ConfigError` and `InfraError`.
        """
        return self._actions().prompt

    def _actions(self) -> Actions:
        if self._known is None:
            schema = self._server.schema()
            self._check_fields(schema)
            self._known = actions_of(self._server, schema)
        return self._known

    def _check_fields(self, schema: Mapping[str, Any]) -> None:
        """Refuse `params.observation` with fields that no observation has, where the server declares them."""
        declared = {
            name: None
            for part in ("reset_observation", "observation")
            for name in (schema.get(part) or {}).get("properties", {})
            if name not in ("done", "reward")
        }
        unknown = [name for name in self.config.observation if name not in declared]
        if unknown and declared.keys() - {METADATA}:
            raise ConfigError(
                f"rollout_step.params.observation: {self.config.name} has no field {', '.join(unknown)}; "
                f"allowed: {', '.join(declared)}"
            )

    async def open(self, task: Task, seed: int) -> Episode:
        """Begin an episode, once the server has a place for it. Raises `ConfigError` and `InfraError`."""
        arguments = self._reset_arguments(task, seed)
        await run_blocking(self._actions)
        while True:
            session = OpenEnvSession(self.config.name, self.config.timeout_s)
            try:
                await session.connect(await run_blocking(self._server.url), self.config.headers)
                first = await session.reset(arguments)
                if first.done:
                    raise InfraError(f"{self.config.name}: the episode is over after the reset {arguments}")
                return Episode(session=session, first=first, owed=first.reward or 0.0)
            except NoPlace as error:
                logger.info("%s: %s; the rollout waits", self.config.name, error)
                await session.close()
            except BaseException:
                await session.close()
                raise
            await asyncio.sleep(PLACE_S)

    def _reset_arguments(self, task: Task, seed: int) -> dict[str, Any]:
        own = task.metadata.get(RESET, {})
        if not isinstance(own, Mapping):
            raise ConfigError(f"task {task.id!r}: column {RESET!r} is {own!r:.80}; it must be a JSON object")
        seeds = {"task": Random(task.id).getrandbits(SEED_BITS), "rollout": seed % (1 << SEED_BITS)}
        drawn = {"seed": seeds[self.config.seed]} if self.config.seed in seeds else {}
        return {**drawn, **self.config.reset, **own}

    async def close(self, state: Episode) -> None:
        await state.session.close()

    async def begin(self, state: Episode) -> Sequence[Message]:
        """The observation of the reset."""
        text = self._text(state.first.observation)
        return [Message(role="user", content=text)] if text else []

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        """One action. Raises `InfraError` for a server that has ended."""
        episode: Episode = state.environment
        owed, episode.owed = episode.owed, 0.0
        generation = await ctx.generate()
        if generation.truncated:
            return StepResult(stop=StopReason.LENGTH, reward=owed)
        try:
            action = self._actions().read(generation.text)
            reply = await self._act(episode.session, action)
        except Mistake as mistake:
            return self._mistaken(mistake, owed, ctx)
        turn = StepResult(
            info={"action": action, "observation": self._unread(reply)},
            reward=owed + (reply.reward or 0.0),
            metrics={"mistakes": 0.0, "failed_actions": 0.0},
        )
        if reply.done:
            return replace(turn, stop=StopReason.DONE, answer=message_of(generation.text).strip())
        said = _message(self._text(reply.observation), called=self._actions().are_calls)
        return replace(turn, insert=tuple(ctx.render([said])))

    async def _act(self, session: OpenEnvSession, action: Mapping[str, Any]) -> OpenEnvReply:
        """Raises `Mistake` and `InfraError`."""
        actions = self._actions()
        try:
            reply = await session.step(action)
        except ActionRefused as refused:
            if actions.fields and not {*refused.fields} <= {*actions.fields}:  # a model of the environment's own
                raise self._failure(str(refused)) from refused
            text = f"The action was not taken. {refused}."
            raise Mistake(text, called=actions.are_calls, ended=refused.ended) from refused
        except ActionFailed as failed:
            raise self._failure(str(failed)) from failed
        except NoReply as lost:
            if not await run_blocking(self._server.is_healthy, session.url):
                raise
            raise self._failure(str(lost), ended=True) from lost
        error = reply.observation.get("error")
        if isinstance(error, dict) and error.get("error_type") == TRANSPORT:
            raise InfraError(f"{self.config.name}: the call did not reach the tool: {error.get('message')}")
        return reply

    def _failure(self, text: str, *, ended: bool = False) -> Mistake | InfraError:
        """Return what an action is at which the environment failed, while its server serves."""
        if not self._has_warned:
            self._has_warned = True
            message = "%s: the environment failed at an action (step/failed_actions counts all): %s"
            logger.warning(message, self.config.name, text)
        if self.config.failed_action == "infra":
            return InfraError(f"{self.config.name}: the environment failed at an action: {text}")
        return Mistake(f"The action failed: {text}", called=self._actions().are_calls, ended=ended, failed=True)

    def _mistaken(self, mistake: Mistake, owed: float, ctx: StepContext) -> StepResult:
        """The turn of a mistake. The policy reads what was wrong, unless the server has ended the episode."""
        text = _cut(str(mistake), self.config.max_chars)
        return StepResult(
            insert=() if mistake.ended else tuple(ctx.render([_message(text, called=mistake.called)])),
            stop=StopReason.DONE if mistake.ended else None,
            info={"mistake": text},
            reward=owed + self.config.mistake_reward,
            metrics={"mistakes": 1.0, "failed_actions": float(mistake.failed)},
        )

    def _reads(self, field: str) -> bool:
        return field in self.config.observation if self.config.observation else field != METADATA

    def _unread(self, reply: OpenEnvReply) -> dict[str, Any]:
        """The fields that the policy does not read; at an episode's end all of them."""
        return {name: value for name, value in reply.observation.items() if reply.done or not self._reads(name)}

    def _text(self, observation: Mapping[str, Any]) -> str:
        """The text of a field, if that is all, else the fields as JSON; empty without any."""
        fields = {name: value for name, value in observation.items() if self._reads(name)}
        text = json.dumps(fields, ensure_ascii=False) if fields else ""
        values = list(fields.values())
        if len(values) == 1 and isinstance(values[0], str):
            text = values[0]
        return _cut(text, self.config.max_chars)


def _message(text: str, *, called: bool) -> Message:
    """The message after an action: the result of its call, if it was one."""
    return inert_results([text])[0] if called else Message(role="user", content=text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - len(CUT)] + CUT
