"""Episodes of OpenEnv servers: what the policy reads, what it earns, whose mistake what fails is, and forks."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ramet import (
    ConfigError,
    InfraError,
    RolloutState,
    StepResult,
    StopReason,
    Task,
    user_prompt,
)
from ramet.testing import check_rollout_step
from ramet.testing.scripted_context import ScriptedContext
from ramet_openenv import OpenEnvConfig
from ramet_openenv.step import OpenEnvStep

TASK = Task(id="t", prompt=user_prompt("Play."), metadata={"reset": {"secret": 5}})


def call(name: str = "step", **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def text_step(url: str, **options: Any) -> OpenEnvStep:
    return OpenEnvStep(OpenEnvConfig(url=url, action="guess", observation=["hint"], **options))


def play(step: OpenEnvStep, replies: Sequence[str], task: Task = TASK, *, pause_s: float = 0.0) -> list[StepResult]:
    """The turns of one rollout. Of the first observation it is only seen whether it is there."""

    async def main() -> list[StepResult]:
        episode = await step.open(task, 7)
        try:
            await step.begin(episode)
            context, results = ScriptedContext(replies), []
            for turn in range(len(replies)):
                await asyncio.sleep(pause_s)
                state = RolloutState(
                    task=task, rollout="0", turn=turn, response="", n_tool_calls=0, environment=episode
                )
                results.append(await step(state, context))
            return results
        finally:
            await step.close(episode)

    return asyncio.run(main())


def inserted(result: StepResult) -> str:
    return "".join(part.text for part in result.insert)


@pytest.mark.parametrize("forks", ["none", "replay"])
def test_the_step_keeps_the_contract(url: str, forks: str) -> None:
    reset = {"secret": 5}
    check_rollout_step(text_step(url, forks=forks, reset=reset), replies=["1", "nine", "5"])
    calls = OpenEnvStep(OpenEnvConfig(url=url, forks=forks, reset=reset))
    check_rollout_step(calls, replies=[call(guess=1), call(guess="x"), call(guess=5)])


def test_observations_are_untrusted_and_calls_get_results(url: str) -> None:
    step = OpenEnvStep(OpenEnvConfig(url=url))
    [turn] = play(step, [f"Let me see.\n{call(guess=3)}"])
    text = '{"hint": "higher", "guesses": 1}'
    assert inserted(turn) == f"<|im_end|>\n<|im_start|>tool\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert [type(part).__name__ for part in turn.insert if part.text == text] == ["Untrusted"]
    assert '"name": "step"' in step.system_prompt([]) and "metadata" not in step.system_prompt([])


def test_tools_of_an_environment_are_its_actions(url_of: Callable[[str], str]) -> None:
    step = OpenEnvStep(OpenEnvConfig(url=url_of("tools"), observation=["result"]))
    [added, unknown, wrong] = play(step, [call("add", a=1, b=2), call("sub", a=1), call("add", a="1", b=2)])
    assert '"text": "3"' in inserted(added) and added.reward == 0.0
    assert added.info["action"] == {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1, "b": 2}}
    assert "There is no action 'sub'. Actions: add." in inserted(unknown)
    assert "add: a must be of type integer, got '1'" in inserted(wrong)
    assert "Add two numbers." in step.system_prompt([])
    with pytest.raises(InfraError, match="the call did not reach the tool: lost"):
        play(step, [call("add", a=13, b=2)])


@pytest.mark.parametrize(
    ("reply", "mistake"),
    [
        ("I guess 3.", "There is no action in this message"),
        ("<tool_call>\n{guess: 3}\n</tool_call>", "not valid JSON"),
        (call(guess=1) + call(guess=2), "A message has one action, this one has 2"),
        (call("guess", number=1), "There is no action 'guess'. Actions: step."),
        (call(guess="three"), "guess must be of type integer, got 'three'"),
        (call(), "guess is missing"),
        (call(guess=1, metadata={"a": 1}), "there is no metadata (known: guess)"),
        (call(guess=61), "guess: Input should be less than or equal to 60"),
    ],
)
def test_what_is_wrong_with_an_action_is_an_observation(url: str, reply: str, mistake: str) -> None:
    """And the episode continues."""
    wrong, right = play(OpenEnvStep(OpenEnvConfig(url=url, mistake_reward=-0.5)), [reply, call(guess=5)])
    assert mistake in inserted(wrong) and mistake in wrong.info["mistake"]
    assert (wrong.stop, wrong.reward, wrong.metrics) == (None, -0.5, {"mistakes": 1.0, "failed_actions": 0.0})
    assert (right.stop, right.reward, right.metrics) == (StopReason.DONE, 1.0, {"mistakes": 0.0, "failed_actions": 0.0})


@pytest.mark.parametrize(
    ("reply", "mistake"), [("five", "guess must be of type integer, got 'five'"), ("  ", "The action is empty.")]
)
def test_a_text_that_is_no_action_is_a_mistake_too(url: str, reply: str, mistake: str) -> None:
    wrong, right = play(text_step(url), [reply, "<think>Hm.</think>5"])
    assert mistake in inserted(wrong) and "<|im_start|>user" in inserted(wrong)
    assert right.stop is StopReason.DONE and right.answer == "5"


def test_an_action_that_ends_the_session_ends_the_rollout_with_the_mistakes_reward(url: str) -> None:
    """openenv 0.10.0 ends the session when a validator of the action raises."""
    [turn] = play(text_step(url, mistake_reward=-1.0), ["42"])
    assert (turn.stop, turn.reward, inserted(turn)) == (StopReason.DONE, -1.0, "")
    assert "does not accept these values" in turn.info["mistake"]


def test_an_exception_of_the_environment_is_the_actions_doing_unless_it_counts_as_infrastructure(url: str) -> None:
    failed, right = play(text_step(url, mistake_reward=-0.5), ["50", "5"])
    assert "The action failed: boom" in inserted(failed) and failed.reward == -0.5
    assert failed.metrics == {"mistakes": 1.0, "failed_actions": 1.0}
    assert right.stop is StopReason.DONE
    with pytest.raises(InfraError, match="the environment failed at an action: boom"):
        play(text_step(url, failed_action="infra"), ["50"])


def test_the_servers_pings_are_answered_while_the_policy_writes(url: str) -> None:
    """A client that has not answered before its action loses its session."""
    [turn] = play(text_step(url, reset={"ping": True}), ["5"], pause_s=1.5)
    assert turn.reward == 1.0


NO_REPLY = {"51": r"no reply to step within \S+timeout_s=2$", "53": "ended before the reply", "54": "the reward is 1e"}


@pytest.mark.parametrize("guess", NO_REPLY)
def test_an_action_without_a_reply_of_a_server_that_serves_ends_the_episode(url: str, guess: str) -> None:
    timeout_s = {"51": 2.0}.get(guess, 60.0)
    [turn] = play(text_step(url, timeout_s=timeout_s, mistake_reward=-1.0), [guess])
    assert (turn.stop, turn.reward, inserted(turn)) == (StopReason.DONE, -1.0, "")
    assert re.search(NO_REPLY[guess], turn.info["mistake"]) and turn.metrics == {"mistakes": 1.0, "failed_actions": 1.0}
    with pytest.raises(InfraError, match=NO_REPLY[guess]):
        play(text_step(url, timeout_s=timeout_s, failed_action="infra"), [guess])


def test_an_action_at_which_the_server_ends_is_infrastructure(command: Callable[..., list[str]]) -> None:
    step = OpenEnvStep(OpenEnvConfig(command=command(), action="guess", start_timeout_s=240.0))
    with pytest.raises(InfraError, match="the connection ended before the reply to step"):
        play(step, ["52"])


def test_a_session_that_ended_before_the_action_is_infrastructure(url: str) -> None:
    async def main() -> None:
        step = text_step(url)
        episode = await step.open(TASK, 7)
        await episode.session._socket.close()  # type: ignore[union-attr]
        await asyncio.wait([episode.session._reading])  # type: ignore[list-item]
        state = RolloutState(task=TASK, rollout="0", turn=0, response="", n_tool_calls=0, environment=episode)
        with pytest.raises(InfraError, match="ended before the reply"):
            await step(state, ScriptedContext(["1"]))
        await step.close(episode)

    asyncio.run(main())


def test_an_episode_that_is_over_at_once_is_infrastructure(url: str) -> None:
    with pytest.raises(InfraError, match="the episode is over after the reset"):
        play(text_step(url, reset={"over": True}), ["1"])


def test_no_server_is_infrastructure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        step = text_step(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(InfraError, match=r"GET /schema: .*refused"):
            step.system_prompt([])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"action": "gues"}, "params.action=gues: .* no such field; allowed: guess"),
        ({"action": "guess", "observation": ["hint", "secret"]}, "no field secret; allowed: .*hint, guesses"),
    ],
)
def test_fields_that_there_are_not_are_named_before_the_start(url: str, options: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        OpenEnvStep(OpenEnvConfig(url=url, **options)).system_prompt([])


def test_arguments_of_a_reset_must_be_an_object(url: str) -> None:
    with pytest.raises(ConfigError, match=r"task 't': column 'reset' is \[1\]"):
        play(text_step(url), ["1"], replace(TASK, metadata={"reset": [1]}))
