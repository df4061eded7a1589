from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from ramet.algorithms.advantages.config import GigpoConfig, GrpoConfig, TreeGrpoConfig
from ramet.algorithms.advantages.gigpo import Gigpo
from ramet.algorithms.advantages.grpo import Grpo
from ramet.algorithms.advantages.tree_grpo import TreeGrpo
from ramet.errors import PluginError
from ramet.policy.batching.rows import Row, row_metrics, rows_of
from ramet.policy.batching.train_batch import TrainBatch
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.types import (
    AdvantageInputs,
    CallStatus,
    Fault,
    Need,
    Rollout,
    Segment,
    SegmentKind,
    StopReason,
    Task,
    ToolRecord,
    user_prompt,
)

MakeGroup = Callable[..., ScoredGroup]
MakeSegment = Callable[..., Segment]


def inputs_of(rows: list[Row], *needs: Need) -> AdvantageInputs:
    return TrainBatch(rows=rows, old_logprobs=[row.engine_logprobs for row in rows]).advantage_inputs(needs)


@pytest.fixture
def forked(sampled: MakeSegment, inserted: MakeSegment) -> ScoredGroup:
    """Root 0 with one tool call, a fork of it after the tool result, and root 1."""
    task = Task(id="t", prompt=user_prompt("?"))
    prompt, call, result = inserted([1, 2], kind=SegmentKind.PROMPT), sampled([3, 4, 5]), inserted([6, 7])
    end = inserted([9], turn=1, kind=SegmentKind.FORCED)
    common = {"task": task, "stop": StopReason.ANSWER}
    root = Rollout(id="0", segments=(prompt, call, result, sampled([8], turn=1, logprob=-2.0), end), **common)
    fork = Rollout(
        id="0.0",
        segments=(prompt, call, result, sampled([10, 11], turn=1)),
        parent="0",
        fork_turn=1,
        n_shared=3,
        **common,
    )
    other = Rollout(id="1", segments=(prompt, sampled([12])), **common)
    scored = [ScoredRollout(rollout=r, reward=float(i)) for i, r in enumerate((root, fork, other))]
    return ScoredGroup(task=task, rollouts=tuple(scored))


def test_groups_that_start_from_the_same_stored_prefix_share_no_token(
    sampled: MakeSegment, inserted: MakeSegment
) -> None:
    """As where a step has a task twice: trees are of one group."""
    task = Task(id="t", prompt=user_prompt("?"))
    prefix = (inserted([1, 2], kind=SegmentKind.PROMPT), inserted([3, 4]))

    def group(*rewards: float) -> ScoredGroup:
        rollouts = [
            Rollout(id=str(i), task=task, stop=StopReason.ANSWER, segments=(*prefix, sampled([5], turn=1)))
            for i in range(len(rewards))
        ]
        scored = [ScoredRollout(rollout=one, reward=reward) for one, reward in zip(rollouts, rewards, strict=True)]
        return ScoredGroup(task=task, rollouts=tuple(scored))

    rows = rows_of([group(1.0, 1.0), group(0.0, 0.0)])
    assert [row.node_ids[:2].tolist() for row in rows] == [[0, 1], [0, 1], [4, 5], [4, 5]]
    assert not TreeGrpo(TreeGrpoConfig())(inputs_of(rows)).advantages.count_nonzero()


def test_a_row_is_built_from_its_segments(forked: ScoredGroup) -> None:
    row = rows_of([forked])[0]
    assert row.prompt_ids.tolist() == [1, 2]
    assert row.response_ids.tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert row.mask.tolist() == [True, True, True, False, False, True, False]
    assert row.engine_logprobs.tolist() == [-1, -1, -1, 0, 0, -2, 0]
    assert row.entropies is not None
    assert row.entropies.tolist() == [0.5, 0.5, 0.5, 0, 0, 0.5, 0]
    assert row.turn_ids.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert row.policy_versions.tolist() == [3, 3, 3, -1, -1, 3, -1]
    assert (row.n_tokens, row.n_trained) == (9, 4)


def test_a_fork_knows_its_parents_row_and_where_its_own_tokens_begin(forked: ScoredGroup) -> None:
    rows = rows_of([forked])
    assert [row.parent for row in rows] == [-1, 0, -1]
    assert [row.fork_position for row in rows] == [0, 5, 0]
    assert rows[0].response_ids[:5].tolist() == rows[1].response_ids[:5].tolist()


def test_a_fork_of_a_masked_parent_keeps_its_fork_position(forked: ScoredGroup) -> None:
    root, *others = forked.rollouts
    fault = Fault(where="engine", message="lost")
    masked = ScoredRollout(rollout=replace(root.rollout, fault=fault), reward=None)
    rows = rows_of([replace(forked, rollouts=(masked, *others))])
    assert [(row.rollout_id, row.parent, row.fork_position) for row in rows] == [("0.0", -1, 5), ("1", -1, 0)]


def test_nodes_are_equal_exactly_where_rollouts_share_the_very_token(
    forked: ScoredGroup, make_group: MakeGroup
) -> None:
    rows = rows_of([make_group([1.0, 2.0]), forked])
    nodes = inputs_of(rows).node_ids
    assert nodes.tolist() == [
        [0, -1, -1, -1, -1, -1, -1],
        [1, 2, -1, -1, -1, -1, -1],
        [3, 4, 5, 6, 7, 8, 9],
        [3, 4, 5, 6, 7, 10, 11],
        [12, -1, -1, -1, -1, -1, -1],
    ]


def test_forks_of_a_masked_parent_share_its_nodes(forked: ScoredGroup) -> None:
    root, fork, other = forked.rollouts
    fault = Fault(where="engine", message="lost")
    masked = ScoredRollout(rollout=replace(root.rollout, fault=fault), reward=None)
    second = replace(fork.rollout, id="0.1", segments=(*fork.rollout.segments[:3], other.rollout.segments[1]))
    scored = (masked, fork, ScoredRollout(rollout=second, reward=2.0))
    rows = rows_of(pickle.loads(pickle.dumps([replace(forked, rollouts=scored)])))
    assert [row.parent for row in rows] == [-1, -1]
    assert [row.node_ids.tolist() for row in rows] == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 7]]


def test_an_estimator_sees_why_rollouts_ended_their_calls_and_what_turns_gave(forked: ScoredGroup) -> None:
    root, fork, other = forked.rollouts
    call = ToolRecord(turn=0, name="x", arguments={}, status=CallStatus.OK, text="", wait_s=0.0, run_s=0.0, attempts=1)
    first = replace(root.rollout, tool_calls=(call, replace(call, turn=1)), turn_rewards=(None, 0.5))
    second = replace(fork.rollout, tool_calls=(call,), stop=StopReason.LENGTH)
    scored = (replace(root, rollout=first), replace(fork, rollout=second), other)
    batch = inputs_of(rows_of([replace(forked, rollouts=scored)]))
    assert batch.stop == [StopReason.ANSWER, StopReason.LENGTH, StopReason.ANSWER]
    assert batch.n_tool_calls.tolist() == [2, 1, 0]
    nan = float("nan")
    assert batch.turn_rewards is not None
    torch.testing.assert_close(batch.turn_rewards, torch.tensor([[nan, 0.5], [nan, nan], [nan, nan]]), equal_nan=True)


def test_states_of_a_group_are_equal_where_their_names_are(forked: ScoredGroup, make_group: MakeGroup) -> None:
    def named(group: ScoredGroup, *keys: tuple[str | None, ...]) -> ScoredGroup:
        rollouts = [
            replace(one, rollout=replace(one.rollout, state_keys=of))
            for one, of in zip(group.rollouts, keys, strict=True)
        ]
        return replace(group, rollouts=tuple(rollouts))

    groups = [named(forked, ("a", "b"), ("a", None), ("b",)), named(make_group([1.0, 2.0]), ("a",), ())]
    batch = inputs_of(rows_of(groups))
    assert batch.state_ids is not None
    assert batch.state_ids.tolist() == [[0, 1], [0, -1], [1, -1], [2, -1], [-1, -1]]


def test_parents_are_rows_of_the_whole_step(forked: ScoredGroup, make_group: MakeGroup) -> None:
    rows = rows_of([make_group([1.0, 2.0]), forked])
    assert [row.parent for row in rows] == [-1, -1, -1, 2, -1]
    assert [row.group for row in rows] == [0, 0, 1, 1, 1]


def test_a_masked_rollout_leaves_the_group_mean(make_group: MakeGroup) -> None:
    rows = rows_of([make_group([1.0, 3.0, 2.0, None])])
    found = Grpo(GrpoConfig(normalize_std=False))(inputs_of(rows, Need.OLD_LOGPROBS)).advantages
    baseline = [row.reward - float(found[i, 0]) for i, row in enumerate(rows)]
    assert baseline == [2.0, 2.0, 2.0]


def test_a_masked_rollout_changes_no_advantage_of_the_others(make_group: MakeGroup) -> None:
    with_fault, without = rows_of([make_group([1.0, 3.0, 2.0, None])]), rows_of([make_group([1.0, 3.0, 2.0])])
    found, expected = (
        Grpo(GrpoConfig())(inputs_of(rows, Need.OLD_LOGPROBS)).advantages for rows in (with_fault, without)
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("rewards", [[1.0], [1.0, None], [None, None], []])
def test_a_group_with_fewer_than_two_valid_members_is_left_out(
    make_group: MakeGroup, rewards: list[float | None]
) -> None:
    groups = [make_group(rewards), make_group([1.0, 2.0, None])]
    assert [row.group for row in rows_of(groups)] == [1, 1]
    assert row_metrics(groups) == {
        "train/rows": 2.0,
        "train/masked_rollouts": rewards.count(None) + 1.0,
        "train/groups_too_small": 1.0,
        "train/groups_without_baseline": 0.0,
    }


def test_a_rollout_alone_in_its_group_is_kept_for_estimators_that_do_not_compare_groups(make_group: MakeGroup) -> None:
    groups = [make_group([1.0, None]), make_group([None]), make_group([0.0, 2.0])]
    assert [row.group for row in rows_of(groups, min_group=1)] == [0, 2, 2]
    assert row_metrics(groups, min_group=1)["train/rows"] == 3
    assert row_metrics(groups, min_group=1)["train/groups_too_small"] == 1


def test_a_group_without_a_baseline_is_left_out_and_counted(forked: ScoredGroup, make_group: MakeGroup) -> None:
    groups = [forked, make_group([1.0, None]), forked, make_group([1.0, 2.0])]
    rows = rows_of(groups, without=[0])
    assert [(row.group, row.parent) for row in rows] == [(2, -1), (2, 0), (2, -1), (3, -1), (3, -1)]
    assert row_metrics(groups, without=[0]) == {
        "train/rows": 5.0,
        "train/masked_rollouts": 1.0,
        "train/groups_too_small": 1.0,
        "train/groups_without_baseline": 1.0,
    }


def test_inputs_are_padded_on_the_right(forked: ScoredGroup) -> None:
    rows = rows_of([forked])
    batch = inputs_of(rows, Need.OLD_LOGPROBS, Need.ENTROPY)
    assert batch.mask.shape == (3, 7)
    assert batch.entropies is not None
    assert batch.entropies[2].tolist() == [0.5] + [0.0] * 6
    assert batch.mask[2].tolist() == [True] + [False] * 6
    assert batch.turn_ids[1].tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert batch.turn_ids[2].tolist() == [0] + [-1] * 6
    assert batch.policy_versions[2].tolist() == [3] + [-1] * 6
    assert batch.old_logprobs is not None and torch.equal(batch.old_logprobs, batch.engine_logprobs)
    assert batch.rewards.tolist() == [0.0, 1.0, 2.0]
    assert (batch.parent.tolist(), batch.fork_position.tolist()) == ([-1, 0, -1], [0, 5, 0])


def test_reward_parts_and_token_rewards_reach_the_estimator(make_group: MakeGroup) -> None:
    group = make_group([1.0, 2.0])
    first = replace(group.rollouts[0], parts={"math": 1.0}, token_rewards={0: 0.25})
    second = replace(group.rollouts[1], parts={"math": 2.0, "format": 0.5})
    rows = rows_of([replace(group, rollouts=(first, second))])
    batch = inputs_of(rows, Need.OLD_LOGPROBS)
    assert batch.reward_parts["math"].tolist() == [1.0, 2.0]
    assert math.isnan(batch.reward_parts["format"][0]) and batch.reward_parts["format"][1] == 0.5
    assert batch.token_rewards is not None
    assert batch.token_rewards.tolist() == [[0.25, 0.0], [0.0, 0.0]]
    weighed = TrainBatch(rows=rows, reward_weights={"math": 1.0, "format": 0.1}).advantage_inputs()
    assert weighed.reward_weights == {"math": 1.0, "format": 0.1}


def test_first_turns_after_equal_first_observations_are_compared(sampled: MakeSegment, inserted: MakeSegment) -> None:
    """Each root has segments of its own for what `begin` inserted; GiGPO was GRPO where it inserts anything."""
    task = Task(id="t", prompt=user_prompt("?"))
    prompt = inserted([1], kind=SegmentKind.PROMPT)

    def scored(number: int, reward: float, *observation: int) -> ScoredRollout:
        segments = (prompt, inserted(list(observation)), sampled([9]))
        rollout = Rollout(id=str(number), task=task, stop=StopReason.DONE, segments=segments)
        return ScoredRollout(rollout=rollout, reward=reward)

    shown = (scored(0, 1.0, 5, 6), scored(1, 0.0, 5, 6), scored(2, 0.0, 5, 7))
    batch = inputs_of(rows_of([ScoredGroup(task=task, rollouts=shown)]))
    assert batch.state_ids is not None and batch.state_ids.tolist() == [[0], [0], [1]]
    output = Gigpo(GigpoConfig(normalize_std=False))(batch)
    assert output.metrics["advantage/turns_compared"] == pytest.approx(2 / 3)
    assert output.advantages[:, 2].tolist() == pytest.approx([2 / 3 + 1 / 2, -1 / 3 - 1 / 2, -1 / 3])
    assert len(set(batch.node_ids[:, 0].tolist())) == 3  # they are still trees of their own


def test_fields_that_were_not_computed_are_none(make_group: MakeGroup) -> None:
    rows = rows_of([make_group([1.0, 2.0])])
    batch = inputs_of(rows)
    assert batch.old_logprobs is batch.turn_rewards is batch.state_ids is batch.entropies is None
    assert batch.token_rewards is batch.ref_logprobs is batch.values is batch.greedy_rewards is None


def test_padded_advantages_give_each_row_its_own_positions(forked: ScoredGroup) -> None:
    rows = rows_of([forked])
    pieces = TrainBatch(rows=rows).with_advantages(torch.arange(21.0).view(3, 7)).advantages
    assert [piece.tolist() for piece in pieces] == [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13], [14]]


def test_an_engine_without_entropies_gives_none(make_group: MakeGroup, sampled: MakeSegment) -> None:
    group = make_group([1.0, 2.0])
    first = group.rollouts[0]
    segments = (first.rollout.segments[0], sampled([3], entropy=None))
    bare = replace(first, rollout=replace(first.rollout, segments=segments))
    rows = rows_of([replace(group, rollouts=(bare, group.rollouts[1]))])
    assert rows[0].entropies is None
    assert inputs_of(rows, Need.ENTROPY).entropies is None


def test_sampled_tokens_without_log_probabilities_are_refused(make_group: MakeGroup) -> None:
    group = make_group([1.0, 2.0])
    first = group.rollouts[0]
    bare = replace(first.rollout.segments[1], logprobs=None)
    broken = replace(first, rollout=replace(first.rollout, segments=(first.rollout.segments[0], bare)))
    with pytest.raises(PluginError, match=r"rollout '0' of task 't', turn 0: the engine gave none"):
        rows_of([replace(group, rollouts=(broken, group.rollouts[1]))])


def test_a_token_reward_outside_the_response_is_refused(make_group: MakeGroup) -> None:
    group = make_group([1.0, 2.0])
    broken = replace(group.rollouts[0], token_rewards={5: 1.0})
    with pytest.raises(PluginError, match=r"token reward at position 5.*1 tokens"):
        rows_of([replace(group, rollouts=(broken, group.rollouts[1]))])


def test_rows_pickle(forked: ScoredGroup) -> None:
    row = rows_of([forked])[1]
    again = pickle.loads(pickle.dumps(row))
    assert np.array_equal(again.response_ids, row.response_ids)
    assert (again.parent, again.reward) == (row.parent, row.reward)
