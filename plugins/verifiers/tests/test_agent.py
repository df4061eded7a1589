"""What becomes of an episode that the worker reports, and which tasks the agent takes."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Any

import pytest
from plugins.verifiers.tests.conftest import Serve

from ramet import AgentStatus, ConfigError, InfraError, Task, user_prompt
from ramet_verifiers.agent import VerifiersAgent, result_of
from ramet_verifiers.config import VerifiersAgentConfig


def episode(**changes: Any) -> dict[str, Any]:
    """One that was scored."""
    scored = {
        "ok": True, "errors": [], "reward": 0.5, "rewards": {"right": 0.5}, "metrics": {}, "answer": "4",
        "stop": "agent_completed", "turns": 2, "began": True, "ended": True, "last_call": None,
    }  # fmt: skip
    return {**scored, **changes}


def failed(type: str, message: str = "", began: bool = True, ended: bool = False, **changes: Any) -> dict[str, Any]:
    error = {"type": type, "status": None, "message": message}
    return episode(ok=False, errors=[error], reward=0, rewards={}, began=began, ended=ended, **changes)


REFUSED = {"type": "ProviderError", "status": 400, "message": 'upstream 400: {"code": "context_length_exceeded"}'}


def test_a_scored_episode_is_the_rollouts_reward() -> None:
    result = result_of(episode(last_call=REFUSED))  # the program ended well where no room was left
    assert (result.answer, result.reward, result.status) == ("4", 0.5, AgentStatus.DONE)
    assert result.info["verifiers"]["rewards"] == {"right": 0.5}


@pytest.mark.parametrize(
    ("report", "status"),
    [
        (failed("HarnessError", "harness 'x' exited 1: KeyError: 'APITimeoutError'"), AgentStatus.FAILED),
        (failed("ProviderError", REFUSED["message"], last_call=REFUSED), AgentStatus.DONE),  # cut at a limit
    ],
)
def test_a_program_that_ends_with_an_error_has_neither_answer_nor_reward(
    report: dict[str, Any], status: AgentStatus
) -> None:
    result = result_of(report)
    assert (result.answer, result.reward, result.status) == (None, 0.0, status)


@pytest.mark.parametrize(
    "report",
    [
        failed("HarnessError", "harness setup", began=False),
        failed("HarnessError", "a metric of the harness", ended=True),
        failed("TaskError", "scoring", ended=True),
        failed("SandboxError"),
        failed("HarnessError", "harness 'x': APITimeoutError: Request timed out."),
        failed("HarnessError", "harness 'x' exited 1: Traceback\n  …\nopenai.APIConnectionError: Connection error."),
        failed("ProviderError", 'upstream 400: {"param": "n"}'),
        episode(last_call={"type": "ProviderError", "status": 503, "message": "down"}),
        episode(stop="scoring_timeout"),
        episode(reward=math.nan),
        {"ok": False, "errors": [{"type": "EnvError", "status": None, "message": "no agent"}]},
    ],
)
def test_other_failures_say_nothing_of_the_policy(report: dict[str, Any]) -> None:
    with pytest.raises(InfraError):
        result_of(report)


@pytest.mark.parametrize("metadata", [{}, {"verifiers": 3}, {"verifiers": {"environment": "other", "data": {}}}])
def test_a_task_of_another_source_is_named(serve: Serve, metadata: dict[str, Any]) -> None:
    async def test() -> None:
        agent = VerifiersAgent(VerifiersAgentConfig(python=sys.executable, environment="sums"))
        async with serve(lambda prompt: "1") as access:
            task = Task(id="row 7", prompt=user_prompt("?"), metadata=metadata)
            with pytest.raises(ConfigError, match="'row 7' is not of the environment 'sums'"):
                await agent.run(task, access.ctx)

    asyncio.run(test())


def test_an_agent_that_cannot_start_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="python is '/absent/python'"):
        VerifiersAgent(VerifiersAgentConfig(python="/absent/python", environment="sums"))
