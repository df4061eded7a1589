"""The rollout step `verifiers`: the program of an environment as an agent.

The program's requests go through the environment's own proxy to the gateway, where the session's key is in the address.
The environment scores the episode; its reward is the rollout's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from ramet import AgentContext, AgentResult, AgentStatus, ConfigError, InfraError, Task
from ramet.helpers import PerLoop
from ramet_verifiers.config import VerifiersAgentConfig
from ramet_verifiers.process import EpisodeWorker, check

KEY = "verifiers"  # in the task's metadata, and in the info of the last turn
TOO_LONG = ("context_length_exceeded", "prompt is too long")  # how the gateway refuses a request beyond a limit
# The last line of a program that did not reach the policy: the exception of its client, however it ended.
UNREACHED = re.compile(
    r"(?:harness '[^']*'(?: exited \d+)?: )?(?:\w+\.)*"
    r"(?:APIConnectionError|APITimeoutError|Connect\w*Error|ConnectTimeout|ReadTimeout|RemoteProtocolError)\b"
)
UNSCORED = ("setup_timeout", "finalize_timeout", "scoring_timeout")  # ends of an episode without a valid score


class VerifiersAgent:
    """`Agent`. One worker process runs the episodes of all rollouts of this process."""

    def __init__(self, config: VerifiersAgentConfig) -> None:
        check(config, "rollout_step.params")
        self.config, self.settings = config, config.settings
        self.forks: Literal["replay", "none"] = "replay" if config.forks == "replay" else "none"
        self._worker = PerLoop(lambda: EpisodeWorker(config), EpisodeWorker.abandon)

    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        """One episode of a task that the benchmark `verifiers` gave.

        Raises `ConfigError` for another task, `InfraError` for every failure that is not the program's own.
        """
        own = task.metadata.get(KEY)
        if not isinstance(own, Mapping) or own.get("environment") != self.config.environment:
            raise ConfigError(
                f"task {task.id!r} is not of the environment {self.config.environment!r}: its tasks come from "
                "data.train=[benchmark:NAME/SPLIT] of the benchmark verifiers"
            )
        request = {
            "data": own["data"],
            "base_url": ctx.session_url,
            "model": ctx.model,
            "max_turns": ctx.budget.turns,
        }
        return result_of(await self._worker.get().run(request))

    async def aclose(self) -> None:
        await self._worker.aclose()


def result_of(episode: Mapping[str, Any]) -> AgentResult:
    """The result of an episode that the worker reports. Raises `InfraError` for one that says nothing of the policy."""
    last_call = episode.get("last_call")
    if last_call is not None and not _is_too_long(last_call):
        raise InfraError(f"the last request of the program failed: {_words(last_call)}")
    if not episode["ok"]:
        return _without_score(episode)
    if episode["stop"] in UNSCORED:
        raise InfraError(f"the episode has no valid score: {episode['stop']}")
    if not math.isfinite(episode["reward"]):
        raise InfraError(f"the environment's reward is {episode['reward']}: it must be a finite number")
    return AgentResult(answer=episode["answer"], reward=episode["reward"], info=_info(episode))


def _without_score(episode: Mapping[str, Any]) -> AgentResult:
    """The result of an episode that failed: a crash of the program while it ran, or the end at a limit.

    Raises `InfraError` if another part failed: the program's installation, its connection, its tools, its scoring.
    """
    errors = episode["errors"]
    while_it_ran = episode.get("began", False) and not episode.get("ended", False)
    if not while_it_ran or not all(_is_a_crash(error) or _is_too_long(error) for error in errors):
        raise InfraError(f"the episode failed: {'; '.join(map(_words, errors)) or episode.get('stop')}")
    is_cut = any(map(_is_too_long, errors))
    return AgentResult(reward=0.0, info=_info(episode), status=AgentStatus.DONE if is_cut else AgentStatus.FAILED)


def _is_a_crash(error: Mapping[str, Any]) -> bool:
    last_line = error["message"].strip().rpartition("\n")[2]
    return error["type"] == "HarnessError" and UNREACHED.match(last_line) is None


def _is_too_long(error: Mapping[str, Any]) -> bool:
    return error["type"] == "ProviderError" and any(words in error["message"] for words in TOO_LONG)


def _words(error: Mapping[str, Any]) -> str:
    return f"{error['type']}: {error['message']}"


def _info(episode: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("ok", "reward", "rewards", "metrics", "stop", "turns", "errors")
    return {KEY: {name: episode[name] for name in kept}}
