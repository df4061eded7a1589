from __future__ import annotations

import random

import pytest

from ramet.rollout.branching.event_order import ArrivalOrder, LogicalOrder, Phase, RolloutEvent


def drained(order: ArrivalOrder | LogicalOrder) -> list[tuple[int, int, tuple[int, ...]]]:
    found = []
    while (note := order.pop()) is not None:
        found.append(note.key)
    return found


def test_in_order_of_arrival_nobody_waits() -> None:
    order = ArrivalOrder()
    order.start((0,), 0)
    order.start((1,), 0)
    order.push(RolloutEvent((1,), Phase.FIRST, 4))
    order.push(RolloutEvent((0,), Phase.FIRST, 0))
    assert drained(order) == [(4, Phase.FIRST, (1,)), (0, Phase.FIRST, (0,))]


def test_a_note_waits_while_another_rollout_may_still_come_before_it() -> None:
    order = LogicalOrder()
    order.start((0,), 0)
    order.start((1,), 0)
    order.push(RolloutEvent((1,), Phase.FIRST, 0))
    assert drained(order) == []
    order.push(RolloutEvent((0,), Phase.FIRST, 0))
    assert drained(order) == [(0, Phase.FIRST, (0,)), (0, Phase.FIRST, (1,))]


def test_a_rollout_that_ended_holds_up_nobody() -> None:
    order = LogicalOrder()
    order.start((0,), 0)
    order.start((1,), 0)
    order.push(RolloutEvent((1,), Phase.FIRST, 0))
    order.push(RolloutEvent((1,), Phase.BEGIN, 1))
    order.push(RolloutEvent((0,), Phase.END, 0))
    assert drained(order) == [(0, Phase.FIRST, (1,)), (0, Phase.END, (0,)), (1, Phase.BEGIN, (1,))]


def test_branch_paths_compare_as_numbers() -> None:
    order = LogicalOrder()
    for root in (2, 10):
        order.start((root,), 0)
        order.push(RolloutEvent((root,), Phase.FIRST, 0))
    assert [path for _, _, path in drained(order)] == [(2,), (10,)]


@pytest.mark.parametrize("seed", range(20))
def test_every_interleaving_is_given_out_in_one_order(seed: int) -> None:
    lives = {
        (0,): [
            RolloutEvent((0,), Phase.FIRST, 0),
            RolloutEvent((0,), Phase.BEGIN, 1),
            RolloutEvent((0,), Phase.FIRST, 1),
            RolloutEvent((0,), Phase.END, 1),
        ],
        (1,): [RolloutEvent((1,), Phase.END, 0)],
        (2,): [
            RolloutEvent((2,), Phase.FIRST, 0),
            RolloutEvent((2,), Phase.BEGIN, 1),
            RolloutEvent((2,), Phase.END, 1),
        ],
    }
    expected = sorted(note.key for notes in lives.values() for note in notes)
    order, rng, found = LogicalOrder(), random.Random(seed), []
    for path in lives:
        order.start(path, 0)
    while any(lives.values()):
        notes = rng.choice([notes for notes in lives.values() if notes])
        order.push(notes.pop(0))
        found += drained(order)
    assert found == expected
