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
# HTTP status of a request that was not refused for what the program or the policy wrote: key, time, load.
NOT_ITS_WORDS = (401, 403, 408, 429)
SETUP_TIMEOUT = "setup_timeout"
SCORING_TIMEOUTS = ("finalize_timeout", "scoring_timeout")  # ends of an episode without a complete score
# How messages of `verifiers` begin (`boundary` in its errors.py): the place, then the type of the exception. What comes
# after may be the policy's text, so no more of a message is read.
PLACES = r"(?:task \w+ )?scoring|task finalize|model boundary hook failed|\w+\.\w+\(\)|harness '[^']*' metric"
OUTAGE = re.compile(  # of a service that the environment uses, such as a judge
    rf"(?:{PLACES}): (?:\w*Connect\w*|APITimeoutError|(?:Read|Write|Pool)Timeout|ServerTimeoutError|URLError"
    r"|(?:Read|Write|Proxy|RemoteProtocol)Error|InternalServerError|RateLimitError|AuthenticationError"
    r"|HTTPStatusError(?=: Server error)|OSError(?!: \[Errno )|OSError(?=: \[Errno (?:5|12|23|24|28|101|113)\])): "
)
UNREACHED = re.compile(r"harness '[^']*': (?:APIConnectionError|APITimeoutError): ")  # by the client of a model
OF_THE_POLICY = ("read ", "runtime died ")  # sandbox errors: a file that is not as expected, a sandbox that was ended


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
    if last_call is not None and _is_outage(last_call, last_call):
        raise InfraError(f"the last request of the program failed: {_words(last_call)}")
    if not episode["ok"]:
        return _without_score(episode)
    if episode["stop"] == SETUP_TIMEOUT:
        raise InfraError(f"the program was not started: {SETUP_TIMEOUT}")
    if episode["stop"] in SCORING_TIMEOUTS:
        return _failed(episode, AgentStatus.FAILED)
    if not math.isfinite(episode["reward"]):  # as of a scorer that reads a number in the policy's text
        return _failed(episode, AgentStatus.FAILED, f"the environment's reward is {episode['reward']}")
    return AgentResult(answer=episode["answer"], reward=episode["reward"], info=_info(episode))


def _without_score(episode: Mapping[str, Any]) -> AgentResult:
    """The result of an episode with an error: a crash, or the end at a limit.

    Raises `InfraError` if it was not the policy's doing: before the program ran nothing is, later an outage is not.
    """
    errors, last_call = episode["errors"], episode.get("last_call")
    if not episode.get("began", False) or any(_is_outage(error, last_call) for error in errors):
        raise InfraError(f"the episode failed: {'; '.join(map(_words, errors)) or episode.get('stop')}")
    is_cut = any(map(_is_too_long, errors))
    return _failed(episode, AgentStatus.DONE if is_cut else AgentStatus.FAILED)


def _is_outage(error: Mapping[str, Any], last_call: Mapping[str, Any] | None) -> bool:
    """Whether an error after the program's start is infrastructure, by its type and place.

    The program's own are not, its tools included: the policy can choose an address that nothing answers.
    `last_call`: the error of its last request that arrived, if that failed.
    """
    message = error["message"]
    if error["status"] == 400 and any(words in message for words in TOO_LONG):  # whatever the exception's type
        return False
    match error["type"]:
        case "ProviderError":
            return not 400 <= (error["status"] or 0) < 500 or error["status"] in NOT_ITS_WORDS
        case "SandboxError":
            return not message.startswith(OF_THE_POLICY)
        case "HarnessError" if UNREACHED.match(message):
            return last_call is None  # else its request arrived, and it did not wait for the reply
        case "HarnessError" | "TaskError" | "EnvError":
            return OUTAGE.match(message) is not None
        case "CancelledError" | "TimeoutError":  # it did not wait for a reply, or a deadline of the settings was over
            return False
    return True  # of the tool servers, of the proxy, of `verifiers` itself


def _is_too_long(error: Mapping[str, Any]) -> bool:
    return error["type"] == "ProviderError" and any(words in error["message"] for words in TOO_LONG)


def _words(error: Mapping[str, Any]) -> str:
    return f"{error['type']}: {error['message']}"


def _failed(episode: Mapping[str, Any], status: AgentStatus, problem: str | None = None) -> AgentResult:
    """A result without an answer; `problem` is what `verifiers` does not call an error."""
    info = _info({**episode, "ok": False, "reward": 0.0, "rewards": {}, "metrics": {}})
    if problem is not None:
        info[KEY]["errors"] = [*episode["errors"], {"type": "ValueError", "status": None, "message": problem}]
    return AgentResult(reward=0.0, info=info, status=status)


def _info(episode: Mapping[str, Any]) -> dict[str, Any]:
    """The episode for the record. A metric that is not a finite number, as a mean of nothing, is None."""
    kept = {name: episode[name] for name in ("ok", "reward", "stop", "turns", "errors")}
    return {KEY: kept | {name: _finite(episode[name]) for name in ("rewards", "metrics")}}


def _finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: v if v is not None and math.isfinite(v) else None for name, v in values.items()}
