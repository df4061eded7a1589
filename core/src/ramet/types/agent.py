"""Agents: programs that run their own loop and call the policy over HTTP (hook 1, second form).

Ramet runs them as it runs its own steps: each rollout is one run of the agent, the gateway records its turns, and the
same groups, branch policies, rewards, estimators and losses follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from ramet.types.task import Task


class AgentStatus(StrEnum):
    """How an agent's run ended. An outage is neither: the agent raises `InfraError`, and its rollout is masked."""

    DONE = "done"
    FAILED = "failed"  # it crashed or gave up, with what the policy wrote: the policy's doing, so it is trained


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """How the gateway serves an agent, and what a crash of it means.

    `history`: `keep` continues with the recorded tokens of earlier turns, thoughts that the client left out included;
    `template` renders each request in full, as the chat template shows earlier turns, which begins a thread where that
    differs. `on_crash`: `reward` judges the rollout as one without an answer, and its environment reward is 0; `mask`
    leaves it out of group statistics and loss, so that a policy can avoid bad rewards by crashing its agent.
    """

    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    history: Literal["keep", "template"] = "keep"
    on_crash: Literal["reward", "mask"] = "reward"
    timeout_s: float | None = None  # after which the agent has crashed; None: only the rollout's deadline, which masks


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The end of an agent's run, as the agent sees it."""

    answer: str | None = None  # `Rollout.answer`, for rewards and benchmarks; None: no answer
    reward: float | None = None  # of the rollout, added to its last turn's; the reward `environment` reads it
    info: Mapping[str, Any] = field(default_factory=dict)  # JSON; in the last turn's `Rollout.infos`
    status: AgentStatus = AgentStatus.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBudget:
    """The limits of one rollout. The gateway refuses requests beyond them with `context_length_exceeded`."""

    turns: int  # requests
    tokens: int  # of all turns, sampled and inserted; the first request's prompt left out
    tool_calls: int
    seconds: float  # until the rollout's deadline, when the agent is cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """An agent's access to the policy, for one rollout."""

    base_url: str  # of the gateway, as clients of OpenAI take it: it ends in /v1
    key: str  # of this rollout's session
    model: str  # the name of the policy; any other is taken, too
    budget: AgentBudget
    folder: Path  # empty, of this rollout only; removed after it
    seed: int  # equal in a fork and its root: an agent that draws by it makes equal requests again

    @property
    def session_url(self) -> str:
        """The address with the key in its path, for clients that cannot set a key; it ends in /v1."""
        return f"{self.root_url}/s/{self.key}/v1"

    @property
    def root_url(self) -> str:
        """The address as clients of Anthropic take it: they add /v1 themselves."""
        return self.base_url.removesuffix("/v1")

    def environ(self) -> dict[str, str]:
        """Environment variables by which clients and programs find the policy."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.root_url,
            "ANTHROPIC_API_KEY": self.key,
            "RAMET_BASE_URL": self.base_url,
            "RAMET_KEY": self.key,
            "RAMET_MODEL": self.model,
            "RAMET_SEED": str(self.seed),
        }


class Agent(Protocol):
    """Hook 1, second form: registered as a rollout step. Runs of several rollouts overlap; an agent keeps no state of
    one between them.

    `forks`: with `replay` a fork runs the agent again with the same task and seed. The gateway answers from the record
    up to the fork while its requests are equal, so the agent's own tools run again: declaring it says that they may.
    `none`: branch policies that fork are refused.

    Optional members: `settings` (`AgentSettings`), of the gateway and of crashes; `async def aclose(self) -> None`,
    after the last rollout.
    """

    forks: Literal["replay", "none"]

    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        """One rollout. Raises `InfraError` for an outage of its own (the rollout is masked); any other error is a crash
        of the agent, `AgentStatus.FAILED`. Cancelled at the rollout's deadline.
        """
        ...
