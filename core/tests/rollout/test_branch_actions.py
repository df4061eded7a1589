"""What a branch policy may do beside forking at tool results: stop, leave the rest, fork at tokens, hear of rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ramet.config.schema import ToolConfig
from ramet.errors import PluginError
from ramet.models.encoder import Encoder
from ramet.rollout.plan import check_groups
from ramet.rollout.record import GroupRecord, read_records, write_records
from ramet.rollout.scoring import Scorer, WeightedReward
from ramet.testing.doubles import Reply, ScriptedPolicy, echo_tool
from ramet.types import (
    AfterTool,
    BranchAction,
    Done,
    Finished,
    FirstTokens,
    Fork,
    Idle,
    Need,
    Rollout,
    Score,
    Scored,
    Start,
    StartRoots,
    Stop,
    StopReason,
)

Play = Callable[..., Any]
ANSWER = "<answer>2</answer>"
REASON = {"entropy of the token": 1.5}


def two_calls(task: str, path: str, turn: int) -> Reply:
    text = f"<python>{path} {turn}</python>" if turn < 2 else ANSWER
    return Reply(text=text, entropies=(float(turn), 0.5), rest_s=0.005)


def by_id(played: Any) -> dict[str, Rollout]:
    return {rollout.id: rollout for rollout in played.rollouts}


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_stopped_rollout_is_pruned_at_the_turn_that_the_policy_knows(play: Play, deterministic: bool) -> None:
    policy = ScriptedPolicy(2, {(AfterTool, "0", 2): [Stop(rollout="1")]}, Need.LATE_EVENTS)
    played = play(two_calls, policy=policy, group_size=2, deterministic=deterministic)
    kept, pruned = played.rollouts
    assert (kept.stop, kept.valid) == (StopReason.ANSWER, True)
    assert (pruned.stop, pruned.valid, pruned.left_out) == (StopReason.PRUNED, False, "branch_policy")
    newest = policy.view_at(AfterTool(rollout="0", turn=2, calls=kept_calls(policy))).rollout("1").turns[-1].index
    assert max(segment.turn for segment in pruned.segments) == newest - 1
    assert len(pruned.tool_calls) == newest
    assert not [event for event, _ in policy.asked if event == Finished(rollout="1", stop=StopReason.PRUNED)]
    assert played.metrics["rollout/stop/pruned"] == 0.5


def kept_calls(policy: ScriptedPolicy) -> Any:
    return next(e.calls for e, _ in policy.asked if isinstance(e, AfterTool) and (e.rollout, e.turn) == ("0", 2))


def test_a_rollout_that_waits_for_the_engine_is_stopped_at_once(play: Play) -> None:
    def slow(task: str, path: str, turn: int) -> Reply:
        return Reply(text=ANSWER, rest_s=30.0) if path == "1" else two_calls(task, path, turn)

    policy = ScriptedPolicy(2, {(AfterTool, "0", 1): [Stop(rollout="1")]}, Need.LATE_EVENTS)
    played = play(slow, policy=policy, group_size=2)
    assert [r.stop for r in played.rollouts] == [StopReason.ANSWER, StopReason.PRUNED]
    assert played.rollouts[1].response == ""
    assert sorted(played.engine.released) == ["train/3/t/0", "train/3/t/1"]
    assert played.engine.aborted == ["train/3/t/1/0"]


def test_a_stopped_rollout_keeps_its_place_in_the_budget_and_its_forks_go_on(play: Play) -> None:
    policy = ScriptedPolicy(1, {(FirstTokens, "0", 1): [Fork(rollout="0", turn=1), Stop(rollout="0")]})
    pruned, fork = play(two_calls, policy=policy, group_size=2).rollouts
    assert (pruned.stop, fork.stop, fork.parent) == (StopReason.PRUNED, StopReason.ANSWER, "0")
    assert all(a is b for a, b in zip(pruned.segments, fork.segments[: fork.n_shared], strict=True))


def test_events_after_the_budget_is_used_up_are_for_policies_that_declare_it(play: Play) -> None:
    silent, told = ScriptedPolicy(2, {}), ScriptedPolicy(2, {}, Need.LATE_EVENTS)
    play(two_calls, policy=silent, group_size=2)
    play(two_calls, policy=told, group_size=2)
    assert [type(event) for event, _ in silent.asked] == [Start]
    assert sum(isinstance(event, Finished) for event, _ in told.asked) == 2


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_policy_may_leave_the_rest_of_the_budget(play: Play, make_task: Any, deterministic: bool) -> None:
    played = play(
        two_calls, policy=ScriptedPolicy(3, {(Idle, "", -1): [Done()]}), group_size=8, deterministic=deterministic
    )
    group = played.groups[0]
    assert (len(group.rollouts), group.n_unused) == (3, 5)
    assert played.metrics["rollout/unused_per_group"] == 5
    check_groups([group], [group.task], 8)


def test_an_answer_may_start_something_and_leave_the_rest(play: Play) -> None:
    policy = ScriptedPolicy(1, {(AfterTool, "0", 1): [Fork(rollout="0", turn=1), Done()]})
    group = play(two_calls, policy=policy, group_size=8).groups[0]
    assert ([r.id for r in group.rollouts], group.n_unused) == (["0", "0.0"], 6)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_fork_at_a_token_shares_the_tokens_before_it(play: Play, encoder: Encoder, deterministic: bool) -> None:
    def script(task: str, path: str, turn: int) -> str:
        return {"0": f"<python>long {turn}</python>", "0.0": "er</python>"}[path] if turn < 1 else ANSWER

    policy = ScriptedPolicy(1, {(AfterTool, "0", 1): [Fork(rollout="0", turn=0, token=5, reason=REASON)]})
    played = play(script, policy=policy, group_size=2, deterministic=deterministic)
    parent, fork = played.rollouts
    assert (fork.parent, fork.fork_turn, fork.fork_token) == ("0", 0, 5)
    assert (parent.fork_reason, fork.fork_reason) == ({}, REASON)
    shared = fork.segments[: fork.n_shared]
    assert all(a is b for a, b in zip(parent.segments, shared, strict=False))
    assert sum(len(s) for s in shared if s.is_sampled) == 5
    text = parent.response[: parent.response.index("</python>") + len("</python>")]
    assert "".join(s.text for s in parent.segments if s.is_sampled and s.turn == 0) == text
    own = fork.tool_calls[0].arguments["text"]  # the call was read from the whole turn
    assert own == encoder.decode(encoder.markup(text)[:5]).removeprefix("<python>") + "er"
    request = next(r for r in played.engine.requests if r.id == "train/3/t/0.0/0")
    assert request.fork_of == "train/3/t/0"
    assert list(request.token_ids) == [i for s in shared for i in s.token_ids]


def test_a_fork_at_a_token_splits_what_earlier_forks_share(play: Play, tmp_path: Any) -> None:
    policy = ScriptedPolicy(
        1,
        {
            (AfterTool, "0", 2): [Fork(rollout="0", turn=1), Fork(rollout="0", turn=0, token=3)],
            (Finished, "0.0", -1): [Fork(rollout="0.0", turn=0, token=3), Fork(rollout="0.1", turn=0, token=1)],
        },
    )
    played = play(two_calls, policy=policy, group_size=5)
    rollouts = by_id(played)
    assert {id: (r.parent, r.fork_turn, r.fork_token) for id, r in rollouts.items()} == {
        "0": (None, None, 0),
        "0.0": ("0", 1, 0),
        "0.1": ("0", 0, 3),
        "0.2": ("0", 0, 3),
        "0.3": ("0", 0, 1),
    }
    for id in ("0.0", "0.1", "0.2", "0.3"):
        fork = rollouts[id]
        assert all(a is b for a, b in zip(rollouts["0"].segments, fork.segments[: fork.n_shared], strict=False))
    first_turn = [len(s) for s in rollouts["0"].segments if s.is_sampled and s.turn == 0]
    assert first_turn == [1, 2, sum(first_turn) - 3]
    write_records(tmp_path / "step.jsonl.gz", [GroupRecord(step=3, group=scored(played))])
    (record,) = read_records(tmp_path / "step.jsonl.gz")
    assert [r.rollout.fork_token for r in record.group.rollouts] == [0, 0, 3, 3, 1]
    assert [r.rollout.segments for r in record.group.rollouts] == [r.segments for r in played.rollouts]


def scored(played: Any) -> Any:
    scorer = Scorer([WeightedReward(name="one", plugin="test", reward=one_each)])
    return asyncio.run(scorer.score(played.groups[0]))


async def one_each(group: Sequence[Rollout]) -> list[float]:
    return [1.0] * len(group)


def test_a_stop_string_that_a_fork_at_a_token_completes_ends_its_turn(play: Play, encoder: Encoder) -> None:
    text = "<lookup>1</lookup>"
    ids = encoder.markup(text)
    inside = range(len("<lookup>1<"), len(text))
    cut, n_shared = next((n, end) for n in range(1, len(ids)) if (end := len(encoder.decode(ids[:n]))) in inside)

    def script(task: str, path: str, turn: int) -> str:
        return {"0": text, "0.0": text[n_shared:] + " and more"}[path] if turn < 1 else ANSWER

    policy = ScriptedPolicy(1, {(AfterTool, "0", 1): [Fork(rollout="0", turn=0, token=cut)]})
    tools = {"lookup": (echo_tool("lookup"), ToolConfig())}
    parent, fork = play(script, policy=policy, group_size=2, tools=tools).rollouts
    assert fork.response == parent.response
    assert [call.arguments for call in fork.tool_calls] == [call.arguments for call in parent.tool_calls]


@pytest.mark.parametrize(
    ("event", "action", "problem"),
    [
        ((AfterTool, "0", 1), Fork(rollout="0", turn=1, token=1), "at a token turns 0 to 0 of rollout 0 can be forked"),
        ((AfterTool, "0", 1), Fork(rollout="0", turn=0, token=99), "turn 0 of rollout 0 can be forked at tokens 1 to "),
        ((AfterTool, "0", 1), Fork(rollout="0", turn=0, token=-1), "turn 0 of rollout 0 can be forked at tokens 1 to "),
        ((FirstTokens, "0", 0), Fork(rollout="0", turn=0, token=1), "at a token none of its turns of rollout 0 can be"),
        ((Finished, "0", -1), Stop(rollout="0"), "rollout 0 has ended"),
        ((AfterTool, "0", 1), Stop(rollout="7"), "the group has no such rollout, only 0"),
    ],
)
def test_what_cannot_be_done_is_refused(play: Play, event: Any, action: BranchAction, problem: str) -> None:
    with pytest.raises(PluginError, match=problem):
        play(two_calls, policy=ScriptedPolicy(1, {event: [action]}), group_size=4)


@pytest.mark.parametrize(
    ("actions", "problem"),
    [
        ([Done(), StartRoots(n=1)], "Done is not the last action, and nothing can be started after it"),
        ([Stop(rollout="0"), Stop(rollout="0")], "it stops rollout 0 twice"),
        ([Fork(rollout="0", turn=1, reason={"draw": "high"})], "not a mapping of names to numbers"),
    ],
)
def test_answers_that_contradict_themselves_are_refused(play: Play, actions: Any, problem: str) -> None:
    with pytest.raises(PluginError, match=problem):
        play(two_calls, policy=ScriptedPolicy(1, {(AfterTool, "0", 1): actions}), group_size=4)


def test_a_stopped_rollout_cannot_be_forked(play: Play) -> None:
    answers = {(AfterTool, "0", 1): [Stop(rollout="1")], (AfterTool, "0", 2): [Fork(rollout="1", turn=1)]}
    with pytest.raises(PluginError, match="rollout 1 was stopped"):
        play(two_calls, policy=ScriptedPolicy(2, answers), group_size=4)


class Rewards:
    """One reward that counts how often it was asked."""

    per_rollout = True

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, group: Sequence[Rollout]) -> list[Score | None]:
        self.asked += [rollout.id for rollout in group]
        return [None if r.id == "1" else Score(value=float(r.id == "0"), token_rewards={0: 1.0}) for r in group]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_policy_hears_each_reward_once_and_the_group_is_not_scored_again(play: Play, deterministic: bool) -> None:
    reward = Rewards()
    scorer = Scorer([WeightedReward(name="mine", plugin="test", reward=reward)])
    policy = ScriptedPolicy(3, {(Scored, "2", -1): [Fork(rollout="2", turn=1)]}, Need.REWARDS)
    played = play(two_calls, policy=policy, group_size=4, deterministic=deterministic, score=scorer.score_rollout)
    told = [event for event, _ in policy.asked if isinstance(event, Scored)]
    assert {event.rollout: event.reward for event in told} == {"0": 1.0, "1": None, "2": 0.0}
    assert policy.view_at(told[-1]).rollout("0").reward == (1.0 if told[-1].rollout != "0" else None) or deterministic
    assert [r.id for r in played.rollouts] == ["0", "1", "2", "2.0"]
    group = asyncio.run(scorer.score(played.groups[0]))
    assert sorted(reward.asked) == ["0", "1", "2", "2.0"]
    assert [(r.reward, r.rollout.valid) for r in group.rollouts] == [
        (1.0, True),
        (None, False),
        (0.0, True),
        (0.0, True),
    ]
    assert group.rollouts[1].rollout.fault is not None
    assert group.rollouts[0].token_rewards == {0: 1.0}
    assert [r.rollout.segments for r in group.rollouts] == [r.segments for r in played.rollouts]


def test_a_group_stays_open_until_its_last_score_is_decided(play: Play) -> None:
    async def slowly(group: Sequence[Rollout]) -> list[float]:
        await asyncio.sleep(0.05)
        return [0.0] * len(group)

    scorer = Scorer([WeightedReward(name="mine", plugin="test", reward=slowly)])
    policy = ScriptedPolicy(1, {(Scored, "0", -1): [Fork(rollout="0", turn=2)]}, Need.REWARDS)
    played = play(two_calls, policy=policy, group_size=2, score=scorer.score_rollout)
    assert [r.id for r in played.rollouts] == ["0", "0.0"]
    assert not [event for event, _ in policy.asked if isinstance(event, Idle)]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("turn", [1, 2])
def test_a_rollout_stopped_at_its_own_first_tokens_does_nothing_more(
    play: Play, deterministic: bool, turn: int
) -> None:
    """The engine reports and replies in the same moment: the rollout's task is the one that is cancelled."""

    def at_once(task: str, path: str, turn: int) -> str:
        return f"<python>{path} {turn}</python>" if turn < 2 else ANSWER

    policy = ScriptedPolicy(2, {(FirstTokens, "0", turn): [Stop(rollout="0")]}, Need.LATE_EVENTS)
    pruned, kept = play(at_once, policy=policy, group_size=2, deterministic=deterministic).rollouts
    assert (pruned.stop, pruned.answer, len(pruned.tool_calls), len(pruned.infos)) == (
        StopReason.PRUNED,
        None,
        turn,
        turn,
    )
    assert max(segment.turn for segment in pruned.segments) == turn - 1
    assert (kept.stop, len(kept.tool_calls)) == (StopReason.ANSWER, 2)


def test_a_rollout_that_was_scored_and_then_stopped_has_no_reward(play: Play) -> None:
    """In a deterministic run it is ahead of the events that are decided."""

    def script(task: str, path: str, turn: int) -> Reply:
        return Reply(text=ANSWER) if path == "1" else Reply(text=ANSWER, first_s=0.05)

    reward = Rewards()
    scorer = Scorer([WeightedReward(name="mine", plugin="test", reward=reward)])
    policy = ScriptedPolicy(3, {(FirstTokens, "0", 0): [Stop(rollout="1")]}, Need.REWARDS, Need.LATE_EVENTS)
    played = play(script, policy=policy, group_size=3, deterministic=True, score=scorer.score_rollout)
    assert "1" in reward.asked
    pruned = asyncio.run(scorer.score(played.groups[0])).rollouts[1]
    assert (pruned.reward, pruned.rollout.stop, pruned.rollout.left_out) == (None, StopReason.PRUNED, "branch_policy")


def test_a_fork_at_a_token_that_is_stopped_ends_at_its_fork_point(play: Play) -> None:
    answers = {
        (AfterTool, "0", 1): [Fork(rollout="0", turn=0, token=4)],
        (AfterTool, "0", 2): [Stop(rollout="0.0")],
    }

    def script(task: str, path: str, turn: int) -> Reply:
        return two_calls(task, path, turn) if path == "0" else Reply(text="er</python>", first_s=30.0)

    parent, fork = play(script, policy=ScriptedPolicy(1, answers, Need.LATE_EVENTS), group_size=2).rollouts
    assert (fork.stop, fork.fork_turn, fork.fork_token) == (StopReason.PRUNED, 0, 4)
    assert len(fork.segments) == fork.n_shared
    assert sum(len(s) for s in fork.segments if s.is_sampled) == 4
    assert fork.response and parent.response.startswith(fork.response)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_reward_that_cancels_itself_masks_its_rollout(play: Play, deterministic: bool) -> None:
    async def cancels(group: Sequence[Rollout]) -> list[float]:
        if group[0].id == "1":
            raise asyncio.CancelledError
        return [1.0] * len(group)

    scorer = Scorer([WeightedReward(name="mine", plugin="test", reward=cancels)])
    policy = ScriptedPolicy(2, {}, Need.REWARDS, Need.LATE_EVENTS)
    played = play(two_calls, policy=policy, group_size=2, deterministic=deterministic, score=scorer.score_rollout)
    scored_rollouts = asyncio.run(scorer.score(played.groups[0])).rollouts
    assert [one.reward for one in scored_rollouts] == [1.0, None]
    assert scored_rollouts[1].rollout.fault is not None
    assert scored_rollouts[1].rollout.fault.where == "reward:mine"


def test_the_first_tokens_of_a_turn_that_was_forked_in_the_middle_are_its_parents(play: Play) -> None:
    def script(task: str, path: str, turn: int) -> Reply:
        if path == "0":
            return two_calls(task, path, turn)
        return Reply(text="er</python>" if turn == 0 else ANSWER, entropies=(9.0,), rest_s=0.05)

    answers = {(AfterTool, "0", 1): [Fork(rollout="0", turn=0, token=4)]}
    policy = ScriptedPolicy(1, answers, Need.LATE_EVENTS)
    play(script, policy=policy, group_size=2, first_tokens=6)
    turns = [view.rollout("0.0").turns[0] for _, view in policy.asked if len(view.rollouts) == 2]
    assert next(turn for turn in turns if turn.entropies).entropies == (0.0, 0.5, 0.0, 0.5, 9.0, 9.0)
