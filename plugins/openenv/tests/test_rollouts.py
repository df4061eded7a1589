"""Groups of rollouts on OpenEnv servers, with the worker of a run: records, rewards, seeds and forks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="ramet[train] is not installed")

from ramet import FirstTokens, Fork, Group, StopReason, Task, user_prompt
from ramet.config.schema import RolloutConfig, SystemPrompt
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import Reply, ScriptedEngine, ScriptedPolicy, tiny_encoder
from ramet_openenv import OpenEnvConfig
from ramet_openenv.step import OpenEnvStep

TASK = Task(id="t", prompt=user_prompt("Play."), metadata={"reset": {"secret": 5}})


def text_step(url: str, **options: Any) -> OpenEnvStep:
    return OpenEnvStep(OpenEnvConfig(url=url, action="guess", observation=["hint"], **options))


def play_group(step: OpenEnvStep, script: Any, *, policy: Any = None, tasks: Sequence[Task] = (TASK,)) -> list[Group]:
    """Groups of two rollouts, with the worker of a run."""

    async def main() -> list[Group]:
        encoder = tiny_encoder()
        worker = RolloutWorker(
            engine=ScriptedEngine(script, encoder),
            encoder=encoder,
            step=step,
            branch_policy=policy or NoBranching(),
            tools={},
            config=RolloutConfig(group_size=2, max_turns=6),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=False,
        )
        try:
            return list(await worker.run(RolloutRequest(tasks=list(tasks), step=0)))
        finally:
            await worker.close()

    return asyncio.run(main())


def test_an_episode_is_a_rollout_with_the_rewards_of_its_turns(url: str) -> None:
    [group] = play_group(text_step(url), lambda task, path, turn: Reply(text=["2", "8", "5"][turn]))
    for rollout in group.rollouts:
        assert rollout.response == (
            "<|end|><|user|>Guess a number from 0 to 9.<|end|><|assistant|>2"
            "<|user|>higher<|end|><|assistant|>8<|user|>lower<|end|><|assistant|>5"
        )
        assert (rollout.stop, rollout.answer, rollout.fault) == (StopReason.DONE, "5", None)
        assert rollout.turn_rewards == (-0.25, -0.25, 1.0)
        assert rollout.infos[0] == {"action": {"guess": 2}, "observation": {"metadata": {"secret": 5}, "guesses": 1}}
        assert rollout.infos[2]["observation"] == {"metadata": {"secret": 5}, "hint": "right", "guesses": 3}


def test_forks_replay_the_seed_and_the_actions(url: str) -> None:
    """The task has no secret: the seed decides, and the fork meets the same one."""
    policy = ScriptedPolicy(1, {(FirstTokens, "0", 1): [Fork(rollout="0", turn=1)]})
    task = replace(TASK, metadata={})
    for seed in ("task", "rollout"):
        step = text_step(url, forks="replay", seed=seed)
        [group] = play_group(
            step,
            lambda task, path, turn: Reply(text=str((turn + (5 if path == "0.0" else 0)) % 10)),
            policy=policy,
            tasks=[task],
        )
        parent, fork = group.rollouts
        assert (fork.parent, fork.fault, parent.fault) == ("0", None, None)
        secrets = {info["observation"]["metadata"]["secret"] for rollout in (parent, fork) for info in rollout.infos}
        assert len(secrets) == 1


def test_all_rollouts_of_a_task_begin_alike_unless_each_has_its_seed(url: str) -> None:
    tasks = [replace(TASK, id=str(number), metadata={}) for number in range(4)]

    def secrets(**options: Any) -> list[set[int]]:
        groups = play_group(text_step(url, **options), lambda task, path, turn: Reply(text="60"), tasks=tasks)
        return [{r.infos[0]["observation"]["metadata"]["secret"] for r in group.rollouts} for group in groups]

    alike = secrets()
    assert [len(found) for found in alike] == [1, 1, 1, 1] and len(set().union(*alike)) > 1
    assert alike == secrets()
    assert max(len(found) for found in secrets(seed="rollout")) == 2
