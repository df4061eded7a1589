from __future__ import annotations

import pickle
from array import array
from collections import Counter
from dataclasses import replace

import pytest

from ramet.rollout.metrics import RolloutMetrics, counted
from ramet.rollout.tools.stats import ToolStats, percentile
from ramet.types import CallStatus, Fault, Group, Origin, Rollout, Segment, SegmentKind, StopReason, Task, ToolRecord

TASK = Task(id="t", prompt=())


def turn(index: int, entropies: list[float]) -> Segment:
    ids = array("i", range(len(entropies)))
    kind, origin = SegmentKind.TURN, Origin.SAMPLED
    return Segment(origin=origin, kind=kind, turn=index, text="x", token_ids=ids, entropies=array("f", entropies))


def call(turn: int) -> ToolRecord:
    return ToolRecord(
        turn=turn, name="python", arguments={}, status=CallStatus.OK, text="", wait_s=0.0, run_s=0.0, attempts=1
    )


def test_shared_work_counts_once_as_executed_and_per_rollout_as_logical() -> None:
    first, second, other = turn(0, [1.0] * 4), turn(1, [2.0] * 3), turn(1, [4.0] * 5)
    shared_call = call(0)
    parent = Rollout(
        id="0",
        task=TASK,
        segments=(first, second),
        stop=StopReason.ANSWER,
        tool_calls=(shared_call,),
        stats={"seconds": 2.0},
    )
    fork = Rollout(
        id="0.0",
        task=TASK,
        segments=(first, other),
        stop=StopReason.FAULT,
        parent="0",
        fork_turn=1,
        n_shared=1,
        tool_calls=(shared_call, call(1)),
        fault=Fault(where="engine", message=""),
        stats={"seconds": 1.0, "drifted_segments": 1.0},
    )
    metrics = RolloutMetrics(first_tokens=2)
    metrics.add(Group(task=TASK, rollouts=(parent, fork)))
    found = metrics.take()
    expected = {
        "rollouts": 2,
        "logical_tool_calls": 3,
        "executed_tool_calls": 2,
        "logical_sampled_tokens": 16,
        "executed_sampled_tokens": 12,
        "response_tokens_max": 9,
        "response_tokens_mean": 8,
        "forks_per_group": 1,
        "turns_mean": 2,
        "stop/answer": 0.5,
        "stop/fault": 0.5,
        "stop/length": 0,
        "entropy": (4 * 1.0 + 3 * 2.0 + 5 * 4.0) / 12,
        "entropy_first_turn": 1.0,
        "entropy_after_tool": 3.0,
        "retokenization_drift": 1,
        "rollout_seconds_mean": 1.5,
    }
    assert {name: found[f"rollout/{name}"] for name in expected} == pytest.approx(expected)


def test_groups_that_another_process_has_counted_give_the_same_metrics_without_their_tokens() -> None:
    def group(entropy: float, task: str) -> Group:
        segments = (turn(0, [entropy] * 4), turn(1, [2.0] * 300))
        stats = {"seconds": entropy, "step/x": entropy, "step_turns/x": 2.0}
        rollout = Rollout(
            id="0", task=TASK, segments=segments, stop=StopReason.ANSWER, tool_calls=(call(0), call(1)),
            answer=task * 1000, turn_rewards=(0.0,) * 100, stats=stats,
        )  # fmt: skip
        fork = replace(rollout, id="0.0", parent="0", fork_turn=1, n_shared=1, segments=(segments[0], turn(1, [1.0])))
        return Group(task=TASK, rollouts=(rollout, fork), n_unused=1)

    complete, by_counts = RolloutMetrics(first_tokens=2), RolloutMetrics(first_tokens=2)
    groups = [group(1.0, "a"), group(3.0, "b")]
    packed = [pickle.dumps(counted(one, 2)) for one in groups]
    for one, sent in zip(groups, packed, strict=True):
        complete.add(one)
        by_counts.add(pickle.loads(sent))
    assert by_counts.take() == complete.take()
    assert max(map(len, packed)) < 3000 < min(len(pickle.dumps(one)) for one in groups)
    assert all(rollout.tool_calls for rollout in pickle.loads(packed[0]).rollouts)


def test_metrics_begin_anew_and_are_empty_without_rollouts() -> None:
    metrics = RolloutMetrics(first_tokens=2)
    assert metrics.take() == {}
    metrics.add(
        Group(task=TASK, rollouts=(Rollout(id="0", task=TASK, segments=(), stop=StopReason.END, stats={"filled": 1}),))
    )
    assert metrics.take()["rollout/filled_per_group"] == 1
    assert metrics.take() == {}


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(v) for v in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.95)) == (50.0, 95.0)
    assert percentile([3.0], 0.95) == 3.0


def test_counters_of_a_tool_in_several_workers_add_up_and_their_percentiles_are_those_of_all_calls() -> None:
    stats = ToolStats(calls=3, run_s=[1.0, 2.0], exceptions=Counter(KeyError=1))
    stats.add(ToolStats(calls=4, errors=1, run_s=[3.0, 4.0], exceptions=Counter(KeyError=2, ValueError=1)))
    metrics = stats.metrics("tool/x")
    assert (metrics["tool/x/exceptions/KeyError"], metrics["tool/x/exceptions/ValueError"]) == (3.0, 1.0)
    assert (metrics["tool/x/calls"], metrics["tool/x/errors"]) == (7.0, 1.0)
    assert (metrics["tool/x/run_p50_s"], metrics["tool/x/run_p95_s"]) == (2.0, 4.0)


def test_a_tool_that_was_not_called_has_counts_and_no_times() -> None:
    assert ToolStats().metrics("tool/x") == {
        f"tool/x/{n}": 0.0 for n in ("calls", "executed", "shared", "errors", "infra", "retries", "waits", "truncated")
    }


def test_branching_is_measured_per_root_by_hand() -> None:
    """Root 0: entropies 1, 1 first, then 3, 2 after a tool (change 1.5), in a fork 0.5 (change -0.5). Root 1: alone."""
    first, second, other = turn(0, [1.0, 1.0]), turn(1, [3.0, 2.0]), turn(1, [0.5])
    root = Rollout(id="0", task=TASK, segments=(first, second), stop=StopReason.END)
    fork = Rollout(
        id="0.0", task=TASK, segments=(first, other), stop=StopReason.END, parent="0", fork_turn=1, n_shared=1
    )
    alone = Rollout(id="1", task=TASK, segments=(turn(0, [9.0]),), stop=StopReason.END)
    metrics = RolloutMetrics(first_tokens=2)
    metrics.add(Group(task=TASK, rollouts=(root, fork, alone)))
    found = metrics.take()
    assert found["rollout/entropy_change_p10"] == -0.5
    assert found["rollout/entropy_change_p90"] == 1.5
    assert found["rollout/entropy_rose_share"] == 0.5
    assert found["rollout/effective_roots"] == pytest.approx(9 / 5)
    assert found["rollout/forks_of_one_root_max"] == 1
    assert found["rollout/response_tokens_forked_mean"] == 4
    assert found["rollout/response_tokens_unforked_mean"] == 2


def test_without_forks_and_entropies_nothing_is_said_of_them() -> None:
    plain = Segment(origin=Origin.SAMPLED, kind=SegmentKind.TURN, turn=0, text="", token_ids=array("i", [1]))
    metrics = RolloutMetrics(first_tokens=2)
    metrics.add(Group(task=TASK, rollouts=(Rollout(id="0", task=TASK, segments=(plain,), stop=StopReason.END),)))
    found = metrics.take()
    assert not [name for name in found if "entropy" in name or "forked" in name]
    assert found["rollout/effective_roots"] == 1
