from __future__ import annotations

from array import array

from ramet.rollout.keys import RolloutKey
from ramet.rollout.tree import LiveRollout, group_of, new_root
from ramet.types import Fault, Origin, Segment, SegmentKind, StopReason, Task, user_prompt

TASK = Task(id="t", prompt=user_prompt("?"))


def segment(kind: SegmentKind, turn: int, text: str) -> Segment:
    origin = Origin.SAMPLED if kind is SegmentKind.TURN else Origin.INSERTED
    return Segment(origin=origin, kind=kind, turn=turn, text=text, token_ids=array("i", map(ord, text)))


def root(path: str = "0", turns: int = 2) -> LiveRollout:
    live = new_root(RolloutKey("train", 0, "t", path), segment(SegmentKind.PROMPT, 0, "Q"))
    for turn in range(turns):
        live.append(segment(SegmentKind.TURN, turn, f"say{turn}"))
        live.append(segment(SegmentKind.RESULT, turn, f"res{turn}"))
        live.begin_turn()
    return live


def test_a_fork_holds_the_very_segments_before_its_turn_and_nothing_after() -> None:
    parent = root()
    fork = parent.fork(1)
    assert [s.text for s in fork.segments] == ["Q", "say0", "res0"]
    assert all(a is b for a, b in zip(fork.segments, parent.segments[:3], strict=True))
    assert bytes(fork.token_ids) == bytes(parent.token_ids[:9])
    assert (fork.response, fork.turn, fork.n_shared, fork.n_response_tokens) == ("say0res0", 1, 3, 8)


def test_what_a_fork_appends_does_not_reach_its_parent() -> None:
    parent = root()
    before = list(parent.segments), array("i", parent.token_ids)
    fork = parent.fork(1)
    fork.append(segment(SegmentKind.TURN, 1, "other"))
    assert (parent.segments, parent.token_ids) == before


def test_forks_are_numbered_in_order_of_their_start_whatever_their_turn() -> None:
    parent = root()
    assert [parent.fork(turn).key.path for turn in (2, 1, 2)] == ["0.0", "0.1", "0.2"]
    assert parent.fork(1).fork(1).key.path == "0.3.0"


def test_a_group_is_in_order_of_branch_paths_with_numbers_as_numbers() -> None:
    roots = [root(path) for path in ("10", "2", "0")]
    live = [*roots, roots[2].fork(1), roots[1].fork(2)]
    for one in live:
        one.stop = StopReason.END
    assert [r.id for r in group_of(TASK, live).rollouts] == ["0", "0.0", "2", "2.0", "10"]


def test_a_masked_rollout_stops_with_fault_and_leaves_the_valid_ones() -> None:
    good, bad = root("0"), root("1")
    good.stop = bad.stop = StopReason.ANSWER
    bad.fault = Fault(where="tool:python", message="outage")
    group = group_of(TASK, [good, bad])
    assert group.rollouts[1].stop is StopReason.FAULT
    assert [r.id for r in group.valid] == ["0"]
