"""Environments under the real `verifiers`, in an environment of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from plugins.verifiers.tests.conftest import MAX_TURNS, Serve

from ramet import AgentStatus, ConfigError, Group, InfraError, Task
from ramet.config.schema import RolloutConfig, SystemPrompt
from ramet.rollout.branching.builtin import RandomBranching
from ramet.rollout.config import RandomBranchConfig
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.worker import RolloutWorker
from ramet.testing.chat_templates import chat_encoder
from ramet.testing.doubles import Reply, ScriptedEngine
from ramet_verifiers.agent import VerifiersAgent
from ramet_verifiers.benchmark import VerifiersBenchmark
from ramet_verifiers.config import VerifiersAgentConfig, VerifiersBenchmarkConfig

FAULTS = ["", "", "endless", "program", "scoring", "", "fetch", "parse", "parse"]


@pytest.fixture
def options(python: str, environments: str) -> dict[str, Any]:
    return {"python": python, "environment": "ramet_sums", "path": [environments]}


def tasks(options: dict[str, Any], split: str = "test", limit: int | None = None, **more: Any) -> list[Task]:
    return list(VerifiersBenchmark(VerifiersBenchmarkConfig(**options, **more)).load(split, limit))


def test_tasks_have_prompt_and_data_and_settings_by_split(options: dict[str, Any]) -> None:
    splits = {"train": {"taskset": {"first": 5}}, "test": {}}
    arguments = {"taskset": {"faults": ["", "scoring"]}}
    train = tasks(options, "train", arguments=arguments, splits=splits)
    assert [task.id for task in train] == ["ramet_sums/train/0", "ramet_sums/train/1"]
    assert [(said.role, said.content) for said in train[0].prompt] == [("system", "Add."), ("user", "5 + 1 = ?")]
    assert [train[1].metadata["verifiers"]["data"][name] for name in ("total", "description")] == [7, "scoring"]
    assert len(tasks(options, limit=1)) == 1


def test_episodes_of_one_worker_are_recorded_and_scored(options: dict[str, Any], serve: Serve) -> None:
    """Runs a right answer, a wrong one, an endless program, one with a bug, a scorer and an engine that fail. Then
    replies at which the program's tool or the scorer fails.
    """
    right, wrong, endless, bug, scorer, engine, *provoked = tasks(
        {**options, "arguments": {"taskset": {"faults": FAULTS}}}
    )

    async def run() -> None:
        agent = VerifiersAgent(VerifiersAgentConfig(**options))

        async def episode(task: Task, script: Any) -> Any:
            async with serve(script) as access:
                return await agent.run(task, access.ctx), access

        def said(text: str) -> Any:
            return lambda prompt: text

        done = await asyncio.gather(
            episode(right, said("1")),
            episode(wrong, said("It is certainly not 3, I think")),
            episode(endless, said("3")),
            episode(bug, said("4")),
            episode(scorer, said("5")),
            episode(engine, lambda prompt: Reply(text="", fails="down")),
            *(
                episode(task, said(text))
                for task, text in zip(provoked, ("http://127.0.0.1:1/", "not a number", "nan"), strict=True)
            ),
            return_exceptions=True,
        )
        await agent.aclose()
        _check(done)

    asyncio.run(run())


def _check(done: list[Any]) -> None:
    (right, access), (wrong, other), (endless, _), (bug, _), scorer, engine, *provoked = done
    assert right.reward == 1.5 and right.answer == "1" and right.status is AgentStatus.DONE
    assert right.info["verifiers"]["rewards"] == {"right": 1.0, "short": 0.5}
    assert wrong.reward == 0.0 and wrong.info["verifiers"]["metrics"] == {"words": 7.0}
    assert access.sampled == ["1<|im_end|>"] * 2 and len(other.sampled) == 2
    assert len(access.session.segments()[1]) == 0  # one thread: the second request continues the first
    # at the limit of turns the environment ends the episode itself, and scores it
    assert endless.status is AgentStatus.DONE and endless.reward == 1.5
    assert [endless.info["verifiers"][name] for name in ("turns", "stop")] == [MAX_TURNS, "max_turns"]
    assert bug.status is AgentStatus.FAILED and bug.reward == 0.0
    assert "a bug of the program" in bug.info["verifiers"]["errors"][0]["message"]
    for (result, _), words in zip(provoked, ("Connection refused", "could not convert", "reward is nan"), strict=True):
        assert result.status is AgentStatus.FAILED and result.reward == 0.0
        assert words in result.info["verifiers"]["errors"][0]["message"]
    assert isinstance(scorer, InfraError) and "the scorer's server is away" in str(scorer)
    assert isinstance(engine, InfraError) and "503" in str(engine)


def test_a_fork_runs_the_program_again_up_to_its_tool_result(options: dict[str, Any]) -> None:
    """The policy calls the tool, the fork begins after its result; only the fork's answer is right."""
    pytest.importorskip("aiohttp", reason="ramet[openai] is not installed")
    (task,) = tasks(options, limit=1)

    def script(task: str, path: str, turn: int) -> str:
        call = '<tool_call>\n{"name": "add", "arguments": {"a": 0, "b": 1}}\n</tool_call>'
        return call if turn == 0 else "0" if path == "0" else "1"

    encoder = chat_encoder("qwen2.5")
    engine = ScriptedEngine(script, encoder)

    async def run() -> Group:
        worker = RolloutWorker(
            engine=engine,
            encoder=encoder,
            step=VerifiersAgent(VerifiersAgentConfig(**options, forks="replay")),
            branch_policy=RandomBranching(RandomBranchConfig(initial_rollouts=1, probability=1.0)),
            tools={},
            config=RolloutConfig(group_size=2, max_turns=MAX_TURNS, max_response_tokens=500),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=False,
        )
        try:
            (group,) = await worker.run(RolloutRequest(tasks=[task], step=1, plan=RolloutPlan()))
        finally:
            await worker.close()
        return group

    root, fork = asyncio.run(run()).rollouts
    assert [rollout.fault for rollout in (root, fork)] == [None, None]
    assert fork.parent == "0" and fork.fork_turn == 1 and fork.segments[:2] == root.segments[:2]
    assert [rollout.answer for rollout in (root, fork)] == ["0", "1"]
    assert [rollout.turn_rewards[-1] for rollout in (root, fork)] == [0.5, 1.5]
    assert [rollout.infos[-1]["verifiers"]["turns"] for rollout in (root, fork)] == [3, 3]
    assert len(engine.requests) == 5  # three turns of the root, two of the fork


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"agent": {"retries": {"max_retries": 2}}}, "agent.retries must be empty"),
        ({"agent": {"harness": {"executes_code": True, "id": "ramet_sums"}}}, "runs commands that the model writes"),
        ({"id": "agentic-judge"}, "it has 2 agents"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused(
    options: dict[str, Any], arguments: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        tasks({**options, "arguments": arguments})
