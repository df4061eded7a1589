"""What becomes of an episode that the worker reports, and which tasks the agent takes."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Any

import pytest
from plugins.verifiers.tests.conftest import Serve

from ramet import AgentStatus, ConfigError, InfraError, Task, user_prompt
from ramet.plugins.output_checks import agent_value_problem
from ramet_verifiers.agent import VerifiersAgent, result_of
from ramet_verifiers.config import VerifiersAgentConfig


def episode(**changes: Any) -> dict[str, Any]:
    """One that was scored."""
    scored = {
        "ok": True, "errors": [], "reward": 0.5, "rewards": {"right": 0.5}, "metrics": {}, "answer": "4",
        "stop": "agent_completed", "turns": 2, "began": True, "ended": True, "last_call": None,
    }  # fmt: skip
    return {**scored, **changes}


def failed(
    type: str, message: str, began: bool = True, ended: bool = False, status: int | None = None, **changes: Any
) -> dict[str, Any]:
    error = {"type": type, "status": status, "message": message}
    return episode(ok=False, errors=[error], reward=0, rewards={}, began=began, ended=ended, **changes)


REFUSED = {"type": "ProviderError", "status": 400, "message": 'upstream 400: {"code": "context_length_exceeded"}'}
GIVEN_UP = {"type": "CancelledError", "status": None, "message": ""}  # the program did not wait for the reply


def test_a_scored_episode_is_the_rollouts_reward() -> None:
    result = result_of(episode(last_call=REFUSED))  # the program ended well where no room was left
    assert (result.answer, result.reward, result.status) == ("4", 0.5, AgentStatus.DONE)
    assert result.info["verifiers"]["rewards"] == {"right": 0.5}


def test_a_metric_that_is_not_a_number_does_not_cost_the_reward() -> None:
    result = result_of(episode(metrics={"words": math.nan, "polite": 1.0, "unknown": None}))
    assert (result.reward, result.status, agent_value_problem(result)) == (0.5, AgentStatus.DONE, None)
    assert result.info["verifiers"]["metrics"] == {"words": None, "polite": 1.0, "unknown": None}


CONNECTION = "openai.APIConnectionError: Connection error."


@pytest.mark.parametrize(
    "report",
    [
        failed("HarnessError", "harness 'x' exited 1: KeyError: 'APITimeoutError'"),
        failed(
            "HarnessError", "harness 'x': ConnectError: [Errno -2] Name or service not known"
        ),  # the policy's address
        failed("HarnessError", f"harness 'x' exited 1: Traceback\nValueError: the policy wrote\n{CONNECTION}"),
        failed("HarnessError", "harness 'x': APITimeoutError: Request timed out.", last_call=GIVEN_UP),
        failed("ProviderError", 'upstream 400: {"param": "messages"}', status=400),
        failed("SandboxError", "read '/answer.txt': No such file", ended=True),
        failed("SandboxError", "runtime died under harness 'x' (exit 137): Killed"),
        failed(
            "TaskError",
            "task Sum scoring: ValueError: could not convert string to float: 'x: ConnectError: '",
            ended=True,
        ),
        failed("TaskError", "task Sum scoring: OSError: [Errno 36] File name too long: 'aaa'", ended=True),
        failed("TaskError", "model boundary hook failed: KeyError: 'a'"),
        failed("TaskError", "scoring timed out", ended=True),
        failed("TimeoutError", "Sums.run() exceeded its 5s deadline (--env.timeout.episode)"),
        episode(stop="scoring_timeout"),
        episode(reward=math.nan, errors=[]),
    ],
)
def test_what_the_policy_can_provoke_is_a_crash_with_reward_0(report: dict[str, Any]) -> None:
    result = result_of(report)
    assert (result.answer, result.reward, result.status) == (None, 0.0, AgentStatus.FAILED)
    assert agent_value_problem(result) is None and not result.info["verifiers"]["ok"]


def test_a_program_that_is_cut_at_a_limit_has_not_crashed() -> None:
    result = result_of(failed("ProviderError", REFUSED["message"], status=400, last_call=REFUSED))
    assert (result.answer, result.reward, result.status) == (None, 0.0, AgentStatus.DONE)


@pytest.mark.parametrize(
    "last_call", [GIVEN_UP, {"type": "ProviderError", "status": 422, "message": "upstream 422: tools"}]
)
def test_a_program_that_ends_well_after_a_request_that_failed_by_its_doing_is_scored(last_call: dict[str, Any]) -> None:
    assert result_of(episode(last_call=last_call)).reward == 0.5


@pytest.mark.parametrize(
    "report",
    [
        failed("HarnessError", "harness setup", began=False),
        failed("SandboxError", "runtime died under harness 'x' (exit 1): ", began=False),
        episode(stop="setup_timeout"),
        failed("HarnessError", "harness 'x' metric: ConnectionRefusedError: [Errno 111]", ended=True),
        failed("TaskError", "task Sum scoring: APIConnectionError: Connection error.", ended=True),
        failed("TaskError", "task Sum scoring: OSError: [Errno 28] No space left on device", ended=True),
        failed("EnvError", "Sums.finalize(): ReadTimeout: ", ended=True),
        failed("SandboxError", "prime exec failed: 503"),
        failed("HarnessError", "harness 'x': APITimeoutError: Request timed out."),
        failed("InterceptionError", "harness 'x' model connection to interception failed"),
        failed("ToolsetError", "server did not report its port"),
        failed("ProviderError", "upstream 503: down", status=503),
        failed("ProviderError", "upstream 401: unknown key", status=401),
        episode(last_call={"type": "ProviderError", "status": 503, "message": "down"}),
        {"ok": False, "errors": [{"type": "EnvError", "status": None, "message": "no agent"}]},
    ],
)
def test_infrastructure_says_nothing_of_the_policy(report: dict[str, Any]) -> None:
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
