"""The agent `external`: programs elsewhere lease rollouts, run them over HTTP, and say how they ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from core.tests.rollout.agents.conftest import CALL, TOOL

from ramet.errors import ConfigError
from ramet.rollout.agents.external import ExternalAgent
from ramet.rollout.branching.builtin import RandomBranching
from ramet.rollout.config import ExternalConfig, RandomBranchConfig
from ramet.rollout.environment_reward import EnvironmentReward
from ramet.rollout.record import GroupRecord, read_records, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.types import Score, SegmentKind, StopReason, Task

Play = Callable[..., Any]
KEY = "an-admin-key-of-tests"


class Worker:
    """A program that leases rollouts from a gateway, and asks the policy as a client of OpenAI does."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url, self.http = url, http

    async def control(self, method: str, path: str, **body: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with self.http.request(method, f"{self.url}/ramet/v1{path}", json=body, headers=headers) as response:
            return response.status, json.loads(await response.text() or "null")

    async def ask(self, lease: Any, messages: list[Any]) -> dict[str, Any]:
        """The body of the reply."""
        body = {"model": lease["model"], "messages": messages, "tools": [TOOL]}
        url, headers = f"{lease['base_url']}/chat/completions", {"Authorization": f"Bearer {lease['key']}"}
        async with self.http.post(url, json=body, headers=headers) as response:
            return dict(await response.json())

    async def chat(self, lease: Any, messages: list[Any]) -> dict[str, Any]:
        """The next message."""
        return dict((await self.ask(lease, messages))["choices"][0]["message"])

    async def tool_loop(self, lease: Any) -> str:
        messages: list[Any] = [{"role": "user", "content": lease["task"]["question"]}]
        while True:
            said = await self.chat(lease, messages)
            messages.append(said)
            if not said.get("tool_calls"):
                return str(said["content"])
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "4"} for call in said.get("tool_calls", ())
            ]


Run = Callable[[Worker, Any], Awaitable[None]]


class WithWorkers(ExternalAgent):
    """`external`, with workers that begin to lease when the first rollout waits, in the same event loop."""

    def __init__(self, run: Run, n_workers: int = 1, **options: Any) -> None:
        super().__init__(ExternalConfig(**{"admin_key": KEY, **options}))
        self._run, self._n_workers = run, n_workers
        self.tasks: list[asyncio.Task[None]] = []
        self.leases: list[Any] = []

    async def run(self, task: Task, ctx: Any) -> Any:
        if not self.tasks:
            self.tasks = [asyncio.create_task(self._work(ctx.root_url)) for _ in range(self._n_workers)]
        return await super().run(task, ctx)

    async def _work(self, url: str) -> None:
        async with aiohttp.ClientSession() as http:
            worker = Worker(url, http)
            while (leased := await worker.control("POST", "/episodes"))[0] == 200:
                self.leases.append(leased[1])
                await self._run(worker, leased[1])


def script(task: str, path: str, turn: int) -> str:
    return CALL if turn < 1 else f"four by {path}"


def check(agent: WithWorkers) -> None:
    """Nothing that a worker asserted has failed."""
    for task in agent.tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, aiohttp.ClientError):  # the gateway has closed
                raise error


async def answers(worker: Worker, lease: Any) -> None:
    answer = await worker.tool_loop(lease)
    status, _ = await worker.control("POST", f"/episodes/{lease['episode']}/end", answer=answer, reward=1)
    assert status == 200


def test_two_workers_share_the_rollouts(play: Play) -> None:
    agent = WithWorkers(answers, n_workers=2)
    played = play(script, step=agent, tools={}, group_size=4)
    check(agent)
    for rollout in played.rollouts:
        assert rollout.valid and rollout.answer == f"four by {rollout.id}"
        assert rollout.turn_rewards == (None, 1.0)
        assert [call.text for call in rollout.tool_calls] == ["4"]
    first = agent.leases[0]
    assert first["task"]["question"] == "What is 2+2?" and "answer" not in first["task"]
    assert 0 < first["budget"]["seconds"] and first["budget"]["turns"] > 0 and isinstance(first["seed"], int)


def test_a_worker_that_dies_masks_its_rollout_alone(play: Play) -> None:
    async def dies(worker: Worker, lease: Any) -> None:
        if lease["episode"] != agent.leases[0]["episode"]:
            return await answers(worker, lease)
        await worker.chat(lease, [{"role": "user", "content": "?"}])
        await asyncio.sleep(60)  # and nothing comes any more

    agent = WithWorkers(dies, n_workers=2, lease_s=3.0)
    rollouts = play(script, step=agent, tools={}, group_size=3).rollouts
    masked = [rollout for rollout in rollouts if rollout.fault is not None]
    assert len(masked) == 1 and masked[0].fault.where == "agent"
    assert "no sign of life for lease_s=3" in masked[0].fault.message
    assert all(rollout.answer for rollout in rollouts if rollout.fault is None)


def test_signs_of_life_keep_a_lease(play: Play) -> None:
    async def slow(worker: Worker, lease: Any) -> None:
        for _ in range(5):
            await asyncio.sleep(0.5)
            assert (await worker.control("POST", f"/episodes/{lease['episode']}/alive"))[0] == 200
        await answers(worker, lease)

    agent = WithWorkers(slow, lease_s=2.0)
    (rollout,) = play(script, step=agent, tools={}, group_size=1).rollouts
    check(agent)
    assert rollout.valid and rollout.answer


def test_a_reported_outage_masks_and_a_crash_does_not(play: Play) -> None:
    async def fails(worker: Worker, lease: Any) -> None:
        await worker.chat(lease, [{"role": "user", "content": "?"}])
        status = "infra" if lease["episode"] == agent.leases[0]["episode"] else "failed"
        end = f"/episodes/{lease['episode']}/end"
        assert (await worker.control("POST", end, status=status, info={"why": "no disk"}))[0] == 200
        status_of_again, again = await worker.control("POST", end, status=status)
        assert status_of_again == 409 and "has ended" in again["error"]["message"]

    agent = WithWorkers(fails)
    rollouts = play(script, step=agent, tools={}, group_size=2).rollouts
    check(agent)
    (outage,) = [rollout for rollout in rollouts if rollout.fault is not None]
    assert outage.fault.where == "agent" and "no disk" in outage.fault.message
    (crash,) = [rollout for rollout in rollouts if rollout.fault is None]
    assert crash.answer is None and crash.turn_rewards == (0.0,)
    assert crash.infos[-1] == {"why": "no disk", "agent": "failed"}


def test_rewards_of_all_three_kinds_reach_the_score_and_the_record(play: Play, tmp_path: Any) -> None:
    async def rewards(worker: Worker, lease: Any) -> None:
        answer = await worker.tool_loop(lease)
        path = f"/episodes/{lease['episode']}"
        for given in ({"reward": 0.5}, {"reward": 0.25}, {"reward": 3, "turn": 1}):
            assert (await worker.control("POST", f"{path}/rewards", **given))[0] == 200
        await worker.control("POST", f"{path}/rewards", reward=len(agent.leases), turn=0)
        for token in (0, 2):
            await worker.control("POST", f"{path}/rewards", reward=token + 1, turn=1, token=token)
        await worker.control("POST", f"{path}/end", answer=answer, reward=1)

    agent = WithWorkers(rewards, forks="replay")
    policy = RandomBranching(RandomBranchConfig(initial_rollouts=1, probability=1.0))
    (group,) = play(script, step=agent, policy=policy, tools={}, group_size=2).groups
    check(agent)
    scores = asyncio.run(EnvironmentReward()(group.rollouts))
    assert len(group.rollouts) == 2 and group.rollouts[1].parent == "0"
    for first, rollout, score in zip((1, 2), group.rollouts, scores, strict=True):
        assert rollout.turn_rewards == (first, 3.0 + 0.75 + 1.0) and isinstance(score, Score)
        ids = [token for s in rollout.segments if s.kind is not SegmentKind.PROMPT for token in s.token_ids]
        sampled = [token for s in rollout.segments if s.is_sampled and s.turn == 1 for token in s.token_ids]
        assert score.value == first + 4.75 and sorted(score.token_rewards.values()) == [1.0, 3.0]
        assert [ids[at] for at in score.token_rewards] == [sampled[0], sampled[2]]
    scored = tuple(ScoredRollout(rollout=rollout, reward=None) for rollout in group.rollouts)
    write_records(tmp_path / "r.jsonl.gz", [GroupRecord(step=0, group=ScoredGroup(task=group.task, rollouts=scored))])
    (record,) = read_records(tmp_path / "r.jsonl.gz")
    for read, written in zip(record.group.rollouts, group.rollouts, strict=True):
        assert read.rollout.turn_rewards == written.turn_rewards
        assert read.rollout.token_rewards == written.token_rewards


def test_a_deadline_frees_the_episode(play: Play, make_task: Callable[..., Task]) -> None:
    refusals: list[Any] = []

    async def too_slow(worker: Worker, lease: Any) -> None:
        if len(agent.leases) == 2:
            return await answers(worker, lease)
        await worker.chat(lease, [{"role": "user", "content": "?"}])
        while (alive := await worker.control("POST", f"/episodes/{lease['episode']}/alive"))[0] == 200:
            await asyncio.sleep(0.05)
        refusals.append(alive)
        assert "no session has this key" in (await worker.ask(lease, []))["error"]["message"]

    agent = WithWorkers(too_slow)
    tasks = [make_task("first"), make_task("second")]
    played = play(script, step=agent, tools={}, tasks=tasks, group_size=1, max_concurrent=1, deadline_s=3.0)
    check(agent)
    first, second = played.rollouts
    assert first.fault.where == "deadline" and second.answer == "four by 0"
    assert refusals[0][0] == 410 and "its deadline passed" in refusals[0][1]["error"]["message"]


def test_a_fork_that_asks_otherwise_ends_its_lease(play: Play, make_task: Callable[..., Task]) -> None:
    refusals: list[Any] = []

    async def differs(worker: Worker, lease: Any) -> None:
        for more in ("first", "second"):
            body = await worker.ask(lease, [{"role": "user", "content": f"{more} of lease {len(agent.leases)}"}])
            if "error" in body:
                end = await worker.control("POST", f"/episodes/{lease['episode']}/end", status="failed")
                refusals.append((body["error"], end))
                return
        await worker.control("POST", f"/episodes/{lease['episode']}/end", answer="four")

    agent = WithWorkers(differs, forks="replay")
    policy = RandomBranching(RandomBranchConfig(initial_rollouts=1, probability=1.0))
    tasks = [make_task("first"), make_task("second")]  # the gateway is open until the second has ended
    played = play(script, step=agent, policy=policy, tools={}, tasks=tasks, group_size=2, max_concurrent=2)
    check(agent)
    root, fork = played.groups[0].rollouts
    assert root.answer == "four" and fork.fault.where == "state:agent"
    error, (status, end) = refusals[0]
    assert error["code"] == "replay_mismatch" and "made another request in turn 0" in error["message"]
    assert status == 410 and "made another request in turn 0" in end["error"]["message"]


def test_a_limit_is_no_crash(play: Play) -> None:
    async def beyond(worker: Worker, lease: Any) -> None:
        await worker.chat(lease, [{"role": "user", "content": "?"}])
        refused = (await worker.ask(lease, [{"role": "user", "content": "again"}]))["error"]
        assert refused["code"] == "context_length_exceeded"
        end = {"status": "failed", "info": {"error": refused["message"]}}
        assert (await worker.control("POST", f"/episodes/{lease['episode']}/end", **end))[0] == 200

    agent = WithWorkers(beyond)
    (rollout,) = play(script, step=agent, tools={}, group_size=1, max_turns=1).rollouts
    check(agent)
    assert rollout.stop is StopReason.TURN_LIMIT and rollout.turn_rewards == (None,)


def test_a_short_admin_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="admin_key has 6 characters"):
        ExternalAgent(ExternalConfig(admin_key="secret"))
