"""What an agent's requests become: threads that are never rewritten, and a rollout in which every token is once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.tests.rollout.gateway.conftest import NAME, Open, check_exact, rollout_of

from ramet.errors import InfraError
from ramet.models.encoder import Encoder
from ramet.rollout.gateway.messages import BadRequest, Said, SaidCall, TurnReply, TurnRequest, in_call_order
from ramet.rollout.gateway.session import QUIET, AgentSession, SessionLimits
from ramet.testing.doubles import Reply as Scripted
from ramet.types import SegmentKind


def said(role: Any, text: str) -> Said:
    return Said(role=role, text=text)


def ask(*messages: Said, **fields: Any) -> TurnRequest:
    return TurnRequest(messages=messages, **fields)


SYSTEM, QUESTION = said("system", "Be brief."), said("user", "What is 2 + 2?")


def replies(session: AgentSession, *requests: TurnRequest) -> list[TurnReply]:
    async def main() -> list[TurnReply]:
        return [await session.reply(request) for request in requests]

    return asyncio.run(main())


def test_a_conversation_is_one_thread_whose_recorded_ids_continue(opened: Open) -> None:
    session, engine = opened(lambda task, path, turn: f"answer {turn}")
    first = replies(session, ask(SYSTEM, QUESTION))[0]
    assert first.text == "answer 0" and first.finish == "stop"
    replies(session, ask(SYSTEM, QUESTION, first.said, said("user", "And 3 + 3?")))
    rollout = check_exact(session, engine)
    assert len(rollout.threads) == 1 and not rollout.thread_starts
    prompt, sampled = engine.seen[0]
    assert engine.seen[1][0][: len(prompt) + len(sampled)] == prompt + sampled
    kinds = [segment.kind for segment in rollout.segments]
    assert kinds == [SegmentKind.PROMPT, SegmentKind.TURN, SegmentKind.MESSAGES, SegmentKind.TURN]


def test_what_a_client_leaves_out_of_an_echo_changes_nothing(opened: Open, encoder: Encoder) -> None:
    """Space around the text and thoughts: the ids that were sampled go on."""
    session, engine = opened(lambda task, path, turn: "<think>hm</think>\n\n four " if turn == 0 else "six")
    first = replies(session, ask(QUESTION))[0]
    assert (first.text, first.thoughts) == ("four", "hm")
    replies(session, ask(QUESTION, said("assistant", "four"), said("user", "3 + 3?")))
    rollout = check_exact(session, engine)
    assert len(rollout.threads) == 1
    assert "<think>hm</think>" in encoder.decode(engine.seen[1][0])


def test_thoughts_that_never_end_are_not_the_message(opened: Open) -> None:
    session, engine = opened(lambda task, path, turn: "<think>one</think>Four.<think>but")
    reply = replies(session, ask(QUESTION))[0]
    assert (reply.text, reply.thoughts) == ("Four.", "onebut")
    check_exact(session, engine)


def test_a_system_message_is_not_left_out(opened: Open, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    session, engine = opened(lambda task, path, turn: "four")
    replies(session, ask(QUESTION, said("system", "Be brief.")))
    assert "Be brief." in encoder.decode(engine.seen[0][0])
    prompt = encoder.prompt
    monkeypatch.setattr(encoder, "prompt", lambda messages, tools, **rest: prompt(messages[:1], tools, **rest))
    with pytest.raises(BadRequest, match="leaves out system messages that are not the first message"):
        replies(session, ask(QUESTION, said("system", "Be short.")))
    check_exact(session, engine)


def test_results_are_rendered_in_the_order_of_their_calls(serve: Any) -> None:
    """Whichever tool was faster: a chat template shows no ids."""
    calls = tuple(SaidCall(id=id, name="add", arguments="{}") for id in ("c1", "c2"))
    results = [Said(role="tool", text=f"result {id}", call_id=id) for id in ("c2", "c1")]
    before = [QUESTION, Said(role="assistant", text="", calls=calls)]

    async def main() -> None:
        async with serve(lambda prompt: "done") as served:
            await served.session.reply(ask(*before, *results))
            await served.session.reply(ask(*before, *reversed(results)))
            (first, _), (second, _) = served.engine.seen
            assert first == second

    asyncio.run(main())
    assert [said.text for said in in_call_order(ask(*before, *results)).messages[2:]] == ["result c1", "result c2"]


def test_an_edited_history_splits_off_and_nothing_is_dropped(opened: Open) -> None:
    session, engine = opened(lambda task, path, turn: f"answer {turn}")
    replies(
        session,
        ask(SYSTEM, QUESTION),
        ask(SYSTEM, QUESTION, said("assistant", "answer 9"), said("user", "Sure?")),
        ask(SYSTEM, QUESTION, said("assistant", "answer 0"), said("user", "Sure?")),
    )
    rollout = check_exact(session, engine)
    assert len(rollout.threads) == 2
    edited = rollout.threads[1]
    assert "answer 9" in "".join(segment.text for segment in edited.segments)
    assert [segment.turn for segment in edited.own if segment.is_sampled] == [1]
    assert {segment.turn for segment in rollout.threads[0].segments if segment.is_sampled} == {0, 2}


def test_parallel_requests_and_sub_agents_have_threads_of_their_own(opened: Open) -> None:
    session, engine = opened(lambda task, path, turn: f"answer {turn}")

    async def main() -> None:
        await session.reply(ask(SYSTEM, QUESTION))
        same = ask(SYSTEM, QUESTION, said("assistant", "answer 0"), said("user", "Sure?"))
        other = ask(said("system", "You are a sub-agent."), said("user", "Add."))
        await asyncio.gather(session.reply(same), session.reply(same), session.reply(other))

    asyncio.run(main())
    rollout = check_exact(session, engine)
    assert len(rollout.threads) == 3
    assert sorted(segment.turn for segment in rollout.segments if segment.is_sampled) == [0, 1, 2, 3]


def test_equal_conversations_at_the_same_time_continue_their_own_threads(opened: Open) -> None:
    session, engine = opened(lambda task, path, turn: "four" if turn < 2 else "sure")
    more = ask(SYSTEM, QUESTION, said("assistant", "four"), said("user", "Sure?"))

    async def main() -> None:
        await asyncio.gather(session.reply(ask(SYSTEM, QUESTION)), session.reply(ask(SYSTEM, QUESTION)))
        await asyncio.gather(session.reply(more), session.reply(more))

    asyncio.run(main())
    rollout = check_exact(session, engine)
    assert len(rollout.threads) == 2


def test_a_compaction_keeps_what_was_sampled_before(opened: Open) -> None:
    session, engine = opened(lambda task, path, turn: f"answer {turn}")
    first = replies(session, ask(SYSTEM, QUESTION))[0]
    second = replies(session, ask(SYSTEM, QUESTION, first.said, said("user", "Sum up.")))[0]
    replies(session, ask(SYSTEM, said("user", f"Summary: {second.text}"), said("user", "Go on.")))
    rollout = check_exact(session, engine)
    assert len(rollout.threads) == 2 and rollout.thread_starts[0].n_segments == 1  # the system message is common


def test_a_retry_is_the_same_turn_and_a_failure_is_not_repeated(opened: Open) -> None:
    fails = [True]

    def script(task: str, path: str, turn: int) -> Any:
        return Scripted(text="", fails="engine is down") if fails and turn == 1 else f"answer {turn}"

    session, engine = opened(script)

    async def main() -> None:
        one = await session.reply(ask(QUESTION), name="a")
        assert await session.reply(ask(QUESTION), name="a", again=True) is one

        with pytest.raises(InfraError, match="engine is down"):
            await session.reply(ask(QUESTION), name="b")
        fails.clear()
        await session.reply(ask(QUESTION), name="b", again=True)

    asyncio.run(main())
    assert len(engine.seen) == 2
    rollout = rollout_of(session)
    assert rollout.n_sampled_tokens == sum(len(sampled) for _, sampled in engine.seen)


def test_limits_are_the_dialects_own_context_error(opened: Open) -> None:
    session, _ = opened(lambda task, path, turn: "four", SessionLimits(max_turns=2, max_tokens=100))
    first = replies(session, ask(QUESTION))[0]
    replies(session, ask(QUESTION, first.said, said("user", "Sure?")))
    with pytest.raises(BadRequest, match="limit of 2 turns") as error:
        replies(session, ask(QUESTION))
    assert error.value.code == "context_length_exceeded"
    short, _ = opened(lambda task, path, turn: "a long answer", SessionLimits(max_turns=9, max_tokens=4))
    cut = replies(short, ask(QUESTION))[0]
    assert cut.finish == "length" and cut.sampled_tokens == 4
    with pytest.raises(BadRequest, match="used all its tokens"):
        replies(short, ask(QUESTION, cut.said, said("user", "Go on.")))
    tight, _ = opened(lambda task, path, turn: "four", SessionLimits(max_turns=9, max_tokens=20))
    first = replies(tight, ask(QUESTION))[0]
    with pytest.raises(BadRequest, match="used all its tokens"):  # what a request adds counts, too
        replies(tight, ask(QUESTION, first.said, said("user", "Are you sure about this answer?")))


def test_an_ended_session_serves_nothing(opened: Open) -> None:
    session, engine = opened(lambda task, path, turn: "four")
    replies(session, ask(QUESTION))
    session.end()
    session.release()
    assert engine.engine.released == [NAME]
    with pytest.raises(BadRequest, match="has ended"):
        replies(session, ask(QUESTION))


def test_the_end_of_a_session_ends_equal_requests_too(opened: Open) -> None:
    session, engine = opened(lambda task, path, turn: Scripted(text="four", rest_s=60))

    async def main() -> None:
        equal = ask(QUESTION, max_tokens=5)
        asked = [asyncio.create_task(session.reply(equal, name="equal")) for _ in range(2)]
        while len(engine.engine.requests) < 2 and not any(reply.done() for reply in asked):
            await asyncio.sleep(0.01)
        await session.drain()
        assert all(turn.is_over for turn in session.threads.turns) and len(engine.engine.aborted) == 2
        refused = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in refused] == [BadRequest, BadRequest]

    asyncio.run(main())


def test_a_fork_continues_a_conversation_that_a_later_turn_of_its_parent_had_again(
    opened: Open, encoder: Encoder
) -> None:
    """With the ids that its own turn has."""
    session, engine = opened(lambda task, path, turn: "four" if turn == 2 else "<think>hm</think>four")
    other = ask(said("user", "And 3 + 3?"))
    replies(session, ask(QUESTION), other, ask(QUESTION))
    fork = session.fork("gateway/0/s/0.0", 1, 0, QUIET)
    replies(fork, ask(QUESTION), other, ask(QUESTION, said("assistant", "four"), said("user", "Sure?")))
    assert len(engine.seen) == 5
    assert encoder.decode(engine.seen[4][0]).count("<think>hm</think>four") == 1
