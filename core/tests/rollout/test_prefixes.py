"""Stored prefixes: what is kept of a group, and rollouts of a later step that go on from there."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from ramet.config.schema import ToolConfig
from ramet.errors import ConfigError, PluginError
from ramet.models.encoder import Encoder
from ramet.plugins import origin
from ramet.policy.batching.rows import rows_of
from ramet.rollout.plan import GrantedGroup
from ramet.rollout.prefixes import n_stored_tokens, prefixes_of, stored_group
from ramet.rollout.record import GroupRecord, read_records, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.doubles import ScriptedEngine, echo_tool
from ramet.types import (
    BranchAction,
    BranchEvent,
    Fault,
    Finished,
    FirstTokens,
    Fork,
    GroupView,
    Insert,
    Markup,
    Need,
    Origin,
    PrefixSource,
    PrefixView,
    RolloutState,
    SegmentKind,
    Start,
    StartFrom,
    StartRoots,
    StepContext,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
)

Play = Callable[..., Any]
ANSWER = "<answer>2</answer>"
BOTH_ORDERS = pytest.mark.parametrize("deterministic", [False, True])


def two_calls(task: str, path: str, turn: int) -> str:
    return f"<python>{path} {turn}</python>" if turn < 2 else ANSWER


class Starts:
    """Answers `Start` with this action, and forks once at the finish of a rollout; keeps the views."""

    def __init__(self, action: BranchAction, fork: Fork | None = None, *needs: Need) -> None:
        self.action = action
        self.fork = fork
        self.needs = frozenset(needs or (Need.PREFIXES,))
        self.asked: list[tuple[BranchEvent, GroupView]] = []

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        self.asked.append((event, group))
        if isinstance(event, Start):
            return [self.action]
        wanted = self.fork is not None and group.budget_left and isinstance(event, Finished)
        return [self.fork] if wanted and event.rollout == self.fork.rollout else []


def scored(played: Any, *rewards: float | None) -> ScoredGroup:
    (group,) = played.groups
    pairs = zip(group.rollouts, rewards, strict=True)
    return ScoredGroup(task=group.task, rollouts=tuple(ScoredRollout(rollout=r, reward=reward) for r, reward in pairs))


def forked(play: Play, **options: Any) -> Any:
    """Root 0, its fork at turn 1, and root 1."""
    policy = Starts(StartRoots(n=2), Fork(rollout="0", turn=1), Need.EARLIER_TURNS)
    return play(two_calls, policy=policy, group_size=3, **options)


def kept(play: Play, *rewards: float | None, **options: Any) -> GroupRecord:
    record = stored_group(3, scored(forked(play, **options), *rewards))
    assert record is not None
    return record


def test_every_place_where_a_turn_begins_is_a_prefix_once(play: Play) -> None:
    record = kept(play, 1.0, 0.0, 0.5)
    found = prefixes_of(record)
    assert [(p.source.rollout, p.source.turns, p.reward) for p in found] == [
        ("0", 1, 1.0), ("0", 2, 1.0), ("0.0", 2, 0.0), ("1", 1, 0.5), ("1", 2, 0.5),
    ]  # fmt: skip
    assert found[0].source == PrefixSource(step=3, rollout="0", turns=1, opened_step=3, opened_root="0")
    assert found[2].source == PrefixSource(step=3, rollout="0.0", turns=2, opened_step=3, opened_root="0")
    assert found[2].segments[:3] == found[0].segments
    assert all(a is b for a, b in zip(found[2].segments, found[0].segments, strict=False))
    assert found[0].view == PrefixView(n_tokens=found[0].n_tokens, turns=1, reward=1.0)
    assert n_stored_tokens(record) == sum(len(s) for s in {id(s): s for p in found for s in p.segments}.values())


def test_what_was_sampled_is_inserted_text_without_numbers(play: Play) -> None:
    played = forked(play)
    record = stored_group(3, scored(played, 1.0, 0.0, 0.0))
    assert record is not None
    (root, *_), (before, *_) = (one.rollout for one in record.group.rollouts), played.rollouts
    assert root.segments[0] is before.segments[0]
    turn, was = root.segments[1], before.segments[1]
    assert (turn.origin, turn.kind, turn.text, turn.token_ids) == (
        Origin.INSERTED, SegmentKind.TURN, was.text, was.token_ids,
    )  # fmt: skip
    assert (turn.logprobs, turn.entropies, turn.policy_version) == (None, None, None)
    assert root.segments[2] is before.segments[2]
    assert max(s.turn for s in root.segments) == 1


def test_only_groups_whose_rewards_differ_and_valid_rollouts_of_several_turns_are_kept(play: Play) -> None:
    played = forked(play)
    assert stored_group(3, scored(played, 1.0, 1.0, None)) is None
    record = stored_group(3, scored(played, None, 0.0, 1.0))
    assert record is not None
    assert [p.source.rollout for p in prefixes_of(record)] == ["0.0", "0.0", "1", "1"]
    at_once = play(lambda *_: ANSWER, group_size=2)
    assert stored_group(3, scored(at_once, 0.0, 1.0)) is None


def test_what_is_kept_is_the_same_after_it_was_written_and_read(play: Play, tmp_path: Path) -> None:
    record = kept(play, 1.0, 0.0, 0.0)
    write_records(tmp_path / "kept.jsonl.gz", [record])
    (read,) = read_records(tmp_path / "kept.jsonl.gz")
    assert read == record
    assert prefixes_of(read) == prefixes_of(record)
    write_records(tmp_path / "again.jsonl.gz", [read])
    assert (tmp_path / "again.jsonl.gz").read_bytes() == (tmp_path / "kept.jsonl.gz").read_bytes()


def test_a_group_that_a_step_budget_granted_to_a_prefix_starts_there_with_its_own_size_and_numbers(play: Play) -> None:
    record = kept(play, 1.0, 0.0, 0.0)
    granted = [GrantedGroup(n=2, first_root=3, prefix=1), GrantedGroup(n=1)]
    policy = Starts(StartRoots(n=1))
    tasks = [record.group.task, replace(record.group.task, id="other")]
    played = play(two_calls, policy=policy, tasks=tasks, granted=granted, group_size=4, stored={"t": record}, at=7)
    first, second = played.groups
    assert [(r.id, r.prefix.turns if r.prefix else None) for r in first.rollouts] == [("3", 2), ("4", 2)]
    assert [(r.id, r.prefix) for r in second.rollouts] == [("0", None)]
    assert {group.budget for _, group in policy.asked} == {1}  # it is asked for the second only


@BOTH_ORDERS
def test_rollouts_go_on_from_a_prefix_and_nothing_of_it_is_trained(
    play: Play, encoder: Encoder, deterministic: bool, tmp_path: Path
) -> None:
    record = kept(play, 1.0, 0.0, 0.0)
    policy = Starts(StartFrom(prefix=1, n=2))
    played = play(two_calls, policy=policy, group_size=2, stored={"t": record}, at=7, deterministic=deterministic)
    first, second = played.rollouts
    assert [(r.id, r.parent, r.fork_turn, r.first_turn) for r in played.rollouts] == [
        ("0", None, None, 2), ("1", None, None, 2),
    ]  # fmt: skip
    assert first.prefix == PrefixSource(step=3, rollout="0", turns=2, opened_step=3, opened_root="0")
    assert first.response == "<python>0 0</python>" + first.segments[2].text + "<python>0 1</python>" + (
        first.segments[4].text + ANSWER
    )
    assert first.sampled == f"<python>0 0</python><python>0 1</python>{ANSWER}"
    assert (first.reply, first.n_sampled_tokens, len(first.tool_calls)) == (ANSWER, len(encoder.markup(ANSWER)), 2)
    assert [request.id for request in played.engine.requests] == ["train/7/t/0/2", "train/7/t/1/2"]
    before = [i for s in first.segments[:5] for i in s.token_ids]
    assert list(played.engine.requests[0].token_ids) == before
    assert all(a is b for a, b in zip(first.segments[:5], second.segments[:5], strict=True))

    rows = rows_of([scored(played, 1.0, 0.0)])
    n = sum(len(s) for s in first.segments[1:5])
    for row in rows:
        assert not row.mask[:n].any() and row.mask[n:].all()
        assert (row.policy_versions[:n] == -1).all() and (row.policy_versions[n:] == 0).all()
        assert not row.engine_logprobs[:n].any()
        assert (row.parent, row.fork_position) == (-1, 0)
    assert np.array_equal(rows[0].node_ids[:n], rows[1].node_ids[:n])
    assert played.metrics["rollout/prefix_starts_per_group"] == 2
    assert (played.metrics["rollout/executed_tool_calls"], played.metrics["rollout/tool_calls_mean"]) == (0, 2)
    assert played.metrics["rollout/executed_sampled_tokens"] == 2 * len(encoder.markup(ANSWER))

    write_records(tmp_path / "step.jsonl.gz", [GroupRecord(step=7, group=scored(played, 1.0, 0.0))])
    (read,) = read_records(tmp_path / "step.jsonl.gz")
    assert [r.rollout for r in read.group.rollouts] == list(played.rollouts)


def test_a_policy_sees_the_prefixes_and_with_which_a_rollout_began(play: Play) -> None:
    record = kept(play, 1.0, 0.0, 0.0)
    policy = Starts(StartFrom(prefix=0, n=1), Fork(rollout="0", turn=1))
    rollouts = play(two_calls, policy=policy, group_size=3, stored={"t": record}).rollouts
    start, view = policy.asked[0]
    assert start == Start() and view.prefixes == tuple(p.view for p in prefixes_of(record))
    event, view = next((e, v) for e, v in policy.asked if isinstance(e, FirstTokens))
    assert (event.rollout, event.turn) == ("0", 1)  # its first own turn is reported
    (seen,) = view.rollouts
    assert (seen.prefix, len(seen.turns), seen.turns[0].ended, seen.turns[0].entropies) == (0, 2, True, ())
    assert seen.turns[0].n_tokens == len(record.group.rollouts[0].rollout.segments[1])
    assert [call.name for call in seen.turns[0].calls] == ["python"]
    assert [(r.id, r.parent, r.fork_turn, r.prefix is None) for r in rollouts] == [
        ("0", None, None, False), ("0.0", "0", 1, True), ("1", None, None, True),
    ]  # fmt: skip
    assert rollouts[1].segments[:3] == rollouts[0].segments[:3]


def test_a_prefix_of_a_rollout_that_began_with_one_says_where_its_states_were_opened(play: Play) -> None:
    record = kept(play, 1.0, 0.0, 0.0)
    policy = Starts(StartFrom(prefix=3, n=2))
    played = play(two_calls, policy=policy, group_size=2, stored={"t": record}, at=7)
    again = stored_group(7, scored(played, 1.0, 0.0))
    assert again is not None
    assert [p.source for p in prefixes_of(again)] == [
        PrefixSource(step=7, rollout="0", turns=1, opened_step=3, opened_root="1"),
        PrefixSource(step=7, rollout="0", turns=2, opened_step=3, opened_root="1"),
        PrefixSource(step=7, rollout="1", turns=2, opened_step=3, opened_root="1"),
    ]


def test_prefixes_that_leave_no_room_for_a_turn_are_not_offered(play: Play) -> None:
    record = kept(play, 1.0, 0.0, 0.0)
    sizes = [p.n_tokens for p in prefixes_of(record)]

    def offered(**limits: int) -> int:
        policy = Starts(StartRoots(n=2))
        play(two_calls, policy=policy, group_size=2, stored={"t": record}, **limits)
        return len(policy.asked[0][1].prefixes)

    assert offered() == 5
    assert offered(max_turns=2) == offered(max_tool_calls=1) == 2
    assert offered(max_response_tokens=max(sizes)) == sum(size < max(sizes) for size in sizes) < 5
    silent = Starts(StartRoots(n=2), None, Need.LATE_EVENTS)
    play(two_calls, policy=silent, group_size=2, stored={"t": record})
    assert silent.asked[0][1].prefixes == ()


def test_a_start_from_what_there_is_not_is_refused(play: Play) -> None:
    record = kept(play, 1.0, 0.0, 0.0)
    for policy, stored, problem in (
        (Starts(StartFrom(prefix=5)), {"t": record}, "StartFrom(prefix=5, n=1): the group has stored prefixes 0 to 4"),
        (
            Starts(StartFrom(prefix=0)), {},
            "StartFrom(prefix=0, n=1): the group has no stored prefixes; a policy that starts from them declares "
            "Need.PREFIXES",
        ),
    ):  # fmt: skip
        with pytest.raises(PluginError) as raised:
            play(two_calls, policy=policy, group_size=2, stored=stored)
        assert f"answered Start() wrongly: {problem}: return a list of " in str(raised.value)


def test_a_prefix_of_another_prompt_is_refused(play: Play) -> None:
    record = kept(play, 1.0, 0.0, 0.0)
    prompt = record.group.rollouts[0].rollout.segments[0]
    other = replace(prompt, token_ids=array("i", [*prompt.token_ids, 65]))
    (first, *_) = record.group.rollouts
    moved = replace(first, rollout=replace(first.rollout, segments=(other, *first.rollout.segments[1:])))
    record = replace(record, group=replace(record.group, rollouts=(moved,)))
    with pytest.raises(ConfigError) as raised:
        play(two_calls, policy=Starts(StartFrom(prefix=0)), group_size=2, stored={"t": record})
    n = len(prompt)
    assert str(raised.value) == (
        f"stored prefixes of task 't', step 3: they begin with another prompt ({n + 1} tokens, now {n}), of another "
        "tokenizer, chat template, rollout step, system prompt or set of tools; a rollout cannot continue from them"
    )


class Ledger:
    """A tool that adds up what its rollout's calls held; its sums begin with the seed."""

    def __init__(self, forks: str) -> None:
        self.schema = echo_tool().schema
        self.forks = forks
        self.seeds: list[int] = []
        self.calls: list[str] = []
        self.drift = 0

    async def open(self, task: Task, seed: int) -> list[int]:
        self.seeds.append(seed)
        return [seed % 100]

    async def fork(self, state: list[int]) -> list[int]:
        return list(state)

    async def close(self, state: list[int]) -> None:
        pass

    async def __call__(self, call: ToolCall) -> ToolResult:
        self.calls.append(str(call.arguments["text"]))
        call.state.append(len(call.state) + self.drift)
        return ToolResult(text=str(sum(call.state)))


@BOTH_ORDERS
def test_a_tools_state_is_opened_with_its_seed_and_replayed(play: Play, deterministic: bool) -> None:
    tool = Ledger("replay")
    options = {"tools": {"python": (tool, ToolConfig())}, "deterministic": deterministic}
    played = forked(play, **options)
    record = stored_group(3, scored(played, 1.0, 0.0, 0.0))
    index = 3  # root 1 after its first turn
    tool.calls.clear()
    seed_of_root_1 = tool.seeds[1]
    policy = Starts(StartFrom(prefix=index, n=1), Fork(rollout="0", turn=2), Need.PREFIXES, Need.EARLIER_TURNS)
    going = play(two_calls, policy=policy, group_size=2, stored={"t": record}, at=7, **options)
    first, fork = going.rollouts
    assert tool.seeds[3:] == [seed_of_root_1]  # the fork calls nothing, so it opens nothing
    assert tool.calls == ["1 0", "0 1"]
    assert first.tool_calls[0].text == played.rollouts[2].tool_calls[0].text
    assert first.tool_calls[1].text == played.rollouts[2].tool_calls[1].text
    assert (fork.parent, fork.valid) == ("0", True)


def test_a_replay_that_diverges_masks_the_rollout(play: Play) -> None:
    tool = Ledger("replay")
    options = {"tools": {"python": (tool, ToolConfig())}}
    record = kept(play, 1.0, 0.0, 0.0, **options)
    tool.drift = 1
    (rollout,) = play(
        two_calls, policy=Starts(StartFrom(prefix=0)), group_size=1, stored={"t": record}, **options
    ).rollouts
    assert rollout.fault is not None
    assert rollout.fault.where == "plugin:state:python"
    assert rollout.fault.message.startswith(f"replay diverged: the call of turn 0 of {origin(tool)} gave ")


@pytest.mark.parametrize("forks", ["copy", "none"])
def test_a_state_that_cannot_be_replayed_is_refused_before_the_start(play: Play, forks: str) -> None:
    with pytest.raises(ConfigError) as raised:
        play(two_calls, policy=Starts(StartRoots(n=1)), tools={"python": (Ledger(forks), ToolConfig())}, group_size=1)
    name = f"{Starts.__module__}.Starts"
    assert (
        str(raised.value)
        == {
            "copy": f"tools.python: its state cannot be replayed (forks = 'copy'), and {name} starts rollouts from "
            "prefixes of earlier steps, whose states are made again; choose another branch policy, or a component "
            "with forks = 'replay'",
            "none": f"tools.python: its state cannot be forked (forks = 'none'), and {name} forks rollouts; choose "
            "branch_policy=none, or another component",
        }[forks]
    )


class Corridor:
    """An environment that is replayed. A turn ends at a `!`, or with an end of sequence."""

    forks = "replay"

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.heard: list[Any] = []

    def system_prompt(self, tools: Any) -> str:
        return ""

    async def open(self, task: Task, seed: int) -> list[int]:
        self.seeds.append(seed)
        return [seed % 10]

    async def fork(self, state: list[int]) -> list[int]:
        return list(state)

    async def close(self, state: list[int]) -> None:
        pass

    async def begin(self, state: list[int]) -> Sequence[Insert]:
        return [Markup(text=f"door {state[0]} ")]

    def state_key(self, state: list[int]) -> str:
        return str(state)

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        generation = await ctx.generate(stop=["!", "?"])
        self.heard.append(generation)
        state.environment.append(len(generation.text))
        if len(state.environment) == 4:
            return StepResult(stop=StopReason.DONE, reward=1.0)
        return StepResult(insert=(Markup(text=f"<{sum(state.environment)}>"),), info={"n": 1}, reward=0.5)


@BOTH_ORDERS
def test_an_environment_takes_the_turns_of_the_prefix_again(play: Play, deterministic: bool) -> None:
    step = Corridor()

    def script(task: str, path: str, turn: int) -> str:
        return ["go!", "on"][turn] if turn < 2 else "there?"

    options = {"step": step, "tools": {}, "deterministic": deterministic}
    played = play(script, group_size=2, **options)
    record = stored_group(3, scored(played, 1.0, 0.0))
    assert record is not None and len(prefixes_of(record)) == 4
    heard, seeds = list(step.heard), list(step.seeds)
    step.heard.clear()
    (rollout,) = play(
        script, policy=Starts(StartFrom(prefix=1)), group_size=1, stored={"t": record}, at=9, **options
    ).rollouts
    assert rollout.fault is None
    assert step.seeds == [*seeds, seeds[0]]
    assert step.heard == [heard[0], next(g for g in heard if g.finished), next(g for g in heard if g.stop == "?")]
    before = played.rollouts[0]
    assert rollout.response == before.response
    assert (rollout.infos, rollout.turn_rewards, rollout.state_keys) == (
        before.infos, before.turn_rewards, before.state_keys,
    )  # fmt: skip


def test_a_masked_start_is_counted_as_any_other(play: Play, encoder: Encoder) -> None:
    record = kept(play, 1.0, 0.0, 0.0)

    class Down(ScriptedEngine):
        async def generate(self, request: Any, on_first: Any = None) -> Any:
            raise OSError("the engine is down")

    policy, engine = Starts(StartFrom(prefix=0)), Down(two_calls, encoder)
    (rollout,) = play(None, policy=policy, group_size=1, stored={"t": record}, engine=engine).rollouts
    assert rollout.fault == Fault(where="engine", message="OSError: the engine is down")
    assert (rollout.n_sampled_tokens, rollout.first_turn) == (0, 1)
