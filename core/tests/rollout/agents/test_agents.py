"""Rollouts whose turns an agent asks for: what is recorded, what is shared by forks, and what masks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from core.tests.rollout.agents.conftest import CALL, TOOL, Chat, HttpAgent, tool_loop

from ramet.errors import ConfigErrors, InfraError
from ramet.rollout.branching.builtin import RandomBranching
from ramet.rollout.branching.token_entropy import TokenEntropy
from ramet.rollout.config import RandomBranchConfig, TokenEntropyConfig
from ramet.testing.doubles import Reply, ScriptedPolicy
from ramet.types import (
    AfterTool,
    AgentContext,
    AgentResult,
    AgentStatus,
    Need,
    Origin,
    Rollout,
    SegmentKind,
    Stop,
    StopReason,
    Task,
)

Play = Callable[..., Any]
Forking = RandomBranching(RandomBranchConfig(initial_rollouts=1, probability=1.0))


def script(task: str, path: str, turn: int) -> str:
    return CALL if turn < 2 else f"four by {path}"


def ids(segments: Any) -> list[int]:
    return [token for segment in segments for token in segment.token_ids]


def check_exact(played: Any) -> None:
    """What each request asked the engine with is a beginning of one thread of its rollout."""
    rollouts = {rollout.id: rollout for rollout in played.rollouts}
    for request in played.engine.requests:
        path = request.id.split("/")[-2]
        prompts = [ids(thread.segments)[: len(request.token_ids)] for thread in rollouts[path].threads]
        assert list(request.token_ids) in prompts


def test_a_tool_loop_is_a_rollout(play: Play) -> None:
    played = play(script, step=HttpAgent(), tools={}, group_size=2)
    check_exact(played)
    for rollout in played.rollouts:
        kinds = [segment.kind.value for segment in rollout.segments]
        assert kinds == ["prompt", "turn", "messages", "turn", "messages", "turn"]
        assert rollout.answer == f"four by {rollout.id}" and rollout.stop is StopReason.ANSWER
        assert [(call.turn, call.name, call.arguments, call.text) for call in rollout.tool_calls] == [
            (turn, "add", {"a": 2, "b": 2}, "4") for turn in (0, 1)
        ]
        assert rollout.valid and len(rollout.infos) == 3
    first, second = played.rollouts
    assert first.segments[0] is second.segments[0]
    assert played.metrics["rollout/tool_calls_mean"] == 2 and played.metrics["step/agent_crashed"] == 0
    assert set(played.engine.released) == {"train/3/t/0", "train/3/t/1"}


def test_forks_answer_from_the_record_and_share_their_parents_segments(play: Play) -> None:
    runs = []

    async def loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
        runs.append(ctx.seed)
        return await tool_loop(task, ctx, chat)

    played = play(script, step=HttpAgent(loop, forks="replay"), policy=Forking, tools={}, group_size=4)
    check_exact(played)
    forks = played.rollouts[1:]
    assert len(forks) == 3 and all(fork.valid and fork.parent is not None for fork in forks)
    assert set(runs) == {runs[0]} and len(runs) == 4
    by_id = {rollout.id: rollout for rollout in played.rollouts}
    for fork in forks:
        parent = by_id[fork.parent]
        assert fork.n_shared and all(
            a is b for a, b in zip(fork.segments[: fork.n_shared], parent.segments, strict=False)
        )
        assert fork.segments[fork.n_shared - 1].kind is SegmentKind.MESSAGES
        assert fork.segments[fork.n_shared].turn == fork.fork_turn
        assert fork.answer == f"four by {fork.id}" and len(fork.tool_calls) == 2
    sampled = {request.id for request in played.engine.requests}
    assert len(sampled) == sum(3 - rollout.first_turn for rollout in played.rollouts)
    assert played.metrics["step/replayed_turns"] > 0


def test_a_fork_in_the_middle_of_a_turn_begins_with_its_tokens(play: Play) -> None:
    policy = TokenEntropy(TokenEntropyConfig(initial_rollouts=1, min_entropy=0.0))

    def replies(task: str, path: str, turn: int) -> Reply:
        return Reply(text=CALL if turn < 1 else f"four, by {path}", entropies=(0.1, 0.2, 0.9, 0.1))

    played = play(replies, step=HttpAgent(forks="replay"), policy=policy, tools={}, group_size=3)
    check_exact(played)
    forks = [rollout for rollout in played.rollouts if rollout.parent is not None]
    assert forks and all(fork.fork_token > 0 for fork in forks)
    for fork in forks:
        shared = [s for s in fork.segments[: fork.n_shared] if s.turn == fork.fork_turn and s.is_sampled]
        assert sum(map(len, shared)) == fork.fork_token
        assert fork.valid, fork.fault


def test_an_agent_that_asks_for_something_else_masks_its_fork(play: Play) -> None:
    runs, cancelled = 0, 0

    async def loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
        nonlocal runs, cancelled
        runs += 1
        try:
            await chat([{"role": "user", "content": f"run {runs}"}], tools=[TOOL])
        except asyncio.CancelledError:
            cancelled += 1
            raise
        return AgentResult(answer=(await chat([{"role": "user", "content": "and?"}]))["content"])

    played = play(script, step=HttpAgent(loop, forks="replay"), policy=Forking, tools={}, group_size=2)
    root, fork = played.rollouts
    assert root.valid and fork.fault is not None
    assert fork.fault.where == "state:agent" and "another request in turn 0" in fork.fault.message
    assert "run ' it has '2<|end|>" in fork.fault.message and "not '1<|end|>" in fork.fault.message
    assert cancelled == 1


def test_a_fork_of_an_agent_that_continued_after_a_refusal_is_refused_again(play: Play) -> None:
    """As agents do that shorten their conversation once it is too long."""
    refusals = []

    async def loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
        plan = await chat([{"role": "user", "content": "?"}], tools=[TOOL])
        with pytest.raises(RuntimeError, match="used all its tokens") as refused:
            await chat([{"role": "user", "content": "much to read " * 20}], tools=[TOOL])
        refusals.append(str(refused.value))
        result = {"role": "tool", "tool_call_id": plan["tool_calls"][0]["id"], "content": "4"}
        last = await chat([{"role": "user", "content": "?"}, plan, result], tools=[TOOL])
        return AgentResult(answer=last["content"])

    played = play(
        lambda task, path, turn: CALL if turn < 1 else f"four by {path}",
        step=HttpAgent(loop, forks="replay"),
        policy=Forking,
        tools={},
        group_size=2,
        max_response_tokens=150,
    )
    check_exact(played)
    assert [rollout.fault for rollout in played.rollouts] == [None] * 2
    assert played.rollouts[1].fork_turn == 1
    assert len(refusals) == 2 and len(set(refusals)) == 1


def test_forks_of_an_agent_with_two_conversations_have_both(play: Play) -> None:
    async def loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
        system = {"role": "system", "content": "Be brief."}
        plan = await chat([system, {"role": "user", "content": task.question}], tools=[TOOL])
        part = await chat([system, {"role": "user", "content": "Add 2 and 2."}], tools=[TOOL])
        result = {"role": "tool", "tool_call_id": plan["tool_calls"][0]["id"], "content": str(part["content"])}
        last = await chat([system, {"role": "user", "content": task.question}, plan, result], tools=[TOOL])
        return AgentResult(answer=last["content"])

    played = play(script, step=HttpAgent(loop, forks="replay"), policy=Forking, tools={}, group_size=4)
    check_exact(played)
    by_id = {rollout.id: rollout for rollout in played.rollouts}
    for rollout in played.rollouts:
        assert rollout.valid, rollout.fault
        assert len(rollout.threads) == 2
        assert {segment.thread for segment in rollout.segments if segment.turn == 1} == {1}
        if rollout.parent is not None:
            parent = by_id[rollout.parent]
            pairs = zip(rollout.segments[: rollout.n_shared], parent.segments, strict=False)
            assert all(own is theirs for own, theirs in pairs)


@pytest.mark.parametrize(
    ("on_crash", "error"),
    [("reward", ValueError), ("mask", ValueError), ("reward", TimeoutError), ("reward", asyncio.CancelledError)],
)
def test_a_crash_is_the_policys_doing(play: Play, on_crash: str, error: type[BaseException]) -> None:
    async def loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
        raise error((await chat([{"role": "user", "content": "?"}]))["content"])

    played = play(script, step=HttpAgent(loop, on_crash=on_crash), tools={}, group_size=1)
    (rollout,) = played.rollouts
    assert rollout.fault is None and rollout.answer is None and rollout.stop is StopReason.DONE
    assert rollout.left_out == (None if on_crash == "reward" else "agent_crash")
    assert rollout.turn_rewards == (0.0,) and error.__name__ in rollout.infos[-1]["error"]
    assert played.metrics["step/agent_crashed"] == 1


async def ends_at_once(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
    raise ValueError("no such file")


async def has_an_outage(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
    await chat([{"role": "user", "content": "?"}])
    raise InfraError("the database is away")


async def asks(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
    return AgentResult(answer=(await chat([{"role": "user", "content": "?"}]))["content"])


@pytest.mark.parametrize(
    ("loop", "reply", "where", "message"),
    [
        (ends_at_once, "x", "agent", "without a complete request to the policy: ValueError: no such file"),
        (has_an_outage, "x", "agent", "the database is away"),
        (asks, Reply(text="", fails="the engine is away"), "engine", "the engine is away"),
    ],
)
def test_what_the_policy_did_not_do_masks_the_rollout(
    play: Play, loop: Any, reply: Any, where: str, message: str
) -> None:
    played = play(lambda *key: reply, step=HttpAgent(loop), tools={}, group_size=1)
    fault = played.rollouts[0].fault
    assert fault is not None and fault.where == where and message in fault.message


def test_a_limit_ends_the_rollout_and_is_no_crash(play: Play) -> None:
    played = play(lambda *key: CALL, step=HttpAgent(), tools={}, group_size=1, max_turns=3)
    (rollout,) = played.rollouts
    assert rollout.stop is StopReason.TURN_LIMIT and rollout.valid
    assert len([s for s in rollout.segments if s.is_sampled]) == 3
    assert played.metrics["step/agent_crashed"] == 0


def test_a_request_that_succeeds_when_it_is_tried_again_masks_nothing(play: Play) -> None:
    tries = 0

    def once(task: str, path: str, turn: int) -> Reply:
        nonlocal tries
        tries += 1
        return Reply(text="four", fails="away" if tries == 1 else None)

    async def loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
        messages = [{"role": "user", "content": "?"}]
        with pytest.raises(RuntimeError, match="503"):
            await chat(messages)
        return AgentResult(answer=(await chat(messages))["content"])

    (rollout,) = play(once, step=HttpAgent(loop), tools={}, group_size=1).rollouts
    assert rollout.valid and rollout.answer == "four"
    assert [segment.origin for segment in rollout.segments] == [Origin.INSERTED, Origin.SAMPLED]


def test_a_deadline_cancels_the_agent(play: Play) -> None:
    ended = []

    async def loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
        await chat([{"role": "user", "content": "?"}])
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(ctx.folder)
        return AgentResult()

    (rollout,) = play(script, step=HttpAgent(loop), tools={}, group_size=1, deadline_s=3.0).rollouts
    assert rollout.fault is not None and rollout.fault.where == "deadline"
    assert len(ended) == 1 and not ended[0].parent.exists()


def test_an_agent_is_closed_with_its_worker(play: Play) -> None:
    closed = []

    class Closing(HttpAgent):
        async def aclose(self) -> None:
            closed.append(self)

    play(script, step=Closing(), tools={}, group_size=2)
    assert len(closed) == 1


def test_an_agent_that_cannot_be_replayed_is_refused_where_policies_fork(play: Play) -> None:
    with pytest.raises(ConfigErrors, match="cannot be forked"):
        play(script, step=HttpAgent(), policy=Forking, tools={}, group_size=2)


def test_a_failed_agent_says_so(play: Play) -> None:
    async def loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
        await chat([{"role": "user", "content": "?"}])
        return AgentResult(answer="no", reward=0.5, info={"why": "gave up"}, status=AgentStatus.FAILED)

    (rollout,) = play(script, step=HttpAgent(loop), tools={}, group_size=1).rollouts
    assert rollout.answer is None and rollout.turn_rewards == (0.5,)
    assert rollout.infos[-1] == {"why": "gave up", "agent": "failed"}


def shown(rollout: Rollout) -> Any:
    return rollout.id, [(s.kind, s.turn, s.thread, s.text, list(s.token_ids)) for s in rollout.segments], rollout.answer


def test_deterministic_runs_repeat(play: Play) -> None:
    settings: dict[str, Any] = dict(
        step=HttpAgent(forks="replay"), policy=Forking, tools={}, group_size=4, deterministic=True
    )
    first, second = (play(script, **settings) for _ in range(2))
    assert [shown(rollout) for rollout in first.rollouts] == [shown(rollout) for rollout in second.rollouts]
    assert [request.seed for request in first.engine.requests] == [request.seed for request in second.engine.requests]


async def two_sub_agents(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
    """Two conversations at the same time; which one's tool is faster depends on whether a reply is recorded."""

    async def sub(name: str, delay_s: float) -> str:
        messages: list[Any] = [{"role": "user", "content": name}]
        messages.append(await chat(messages, tools=[TOOL], max_tokens=120))
        await asyncio.sleep(delay_s)
        call = messages[1]["tool_calls"][0]["id"]
        messages.append({"role": "tool", "tool_call_id": call, "content": f"result of {name}"})
        return str((await chat(messages, tools=[TOOL], max_tokens=120))["content"])

    said = await asyncio.gather(sub("X", 0.15), sub("Y", 0.05))
    return AgentResult(answer=" ".join(said))


def test_forks_of_parallel_sub_agents_train_only_what_their_agent_asked_for(play: Play) -> None:
    """The record is used until all of it was asked for, and requests of later turns wait for the forked one."""
    every_turn = RandomBranching(RandomBranchConfig(initial_rollouts=1, probability=1.0))
    played = play(
        lambda task, path, turn: Reply(text=CALL if turn < 2 else f"by {path} in {turn}", rest_s=0.02),
        step=HttpAgent(two_sub_agents, forks="replay"),
        policy=every_turn,
        tools={},
        group_size=4,
    )
    for rollout in played.rollouts:
        assert rollout.valid, rollout.fault
        texts = [segment.text for segment in rollout.segments if segment.is_sampled and segment.turn >= 2]
        assert sorted(texts) == sorted(rollout.answer.replace(" by", "\nby").split("\n"))
        assert [(call.turn, call.text) for call in rollout.tool_calls] == [
            (0, "result of X"),
            (1, "result of Y"),
        ]


def test_a_rollout_that_was_stopped_stays_so_whatever_its_agent_returns(play: Play) -> None:
    async def loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
        await chat([{"role": "user", "content": "?"}])
        await chat([{"role": "user", "content": "and?"}])
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            return AgentResult(answer="partial", reward=5.0)
        return AgentResult(answer="done")

    stops = {(AfterTool, "0", 1): [Stop(rollout="0")], (AfterTool, "1", 1): [Stop(rollout="1")]}
    policy = ScriptedPolicy(2, stops, Need.LATE_EVENTS)  # type: ignore[arg-type]
    played = play(script, step=HttpAgent(loop, forks="replay"), policy=policy, tools={}, group_size=2)
    assert [(rollout.stop, rollout.answer) for rollout in played.rollouts] == [(StopReason.PRUNED, None)] * 2


def test_turns_in_flight_keep_the_limit_of_tokens_together(play: Play) -> None:
    async def loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
        asked = [chat([{"role": "user", "content": f"part {n}"}]) for n in range(4)]
        said = await asyncio.gather(*asked, return_exceptions=True)
        return AgentResult(answer=str(len([one for one in said if isinstance(one, dict)])))

    replies = Reply(text="four and a few more words", rest_s=0.02)
    (rollout,) = play(
        lambda *key: replies, step=HttpAgent(loop), tools={}, group_size=1, max_response_tokens=80
    ).rollouts
    assert rollout.n_response_tokens <= 80 and rollout.answer in ("2", "3")


def test_an_agent_may_end_with_the_faster_of_two_equal_requests(play: Play) -> None:
    n_asked = 0

    def replies(task: str, path: str, turn: int) -> Reply:
        nonlocal n_asked
        n_asked += 1
        return Reply(text="slow", rest_s=60) if n_asked == 1 else Reply(text="fast")

    async def loop(task: Task, ctx: AgentContext, chat: Chat) -> AgentResult:
        asked = [asyncio.create_task(chat([{"role": "user", "content": "?"}], max_tokens=10)) for _ in range(2)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        return AgentResult(answer=done.pop().result()["content"])

    (rollout,) = play(replies, step=HttpAgent(loop), tools={}, group_size=1).rollouts
    assert rollout.valid and rollout.answer == "fast"
    assert [(s.turn, s.text) for s in rollout.segments if s.is_sampled] == [(1, "fast")]
