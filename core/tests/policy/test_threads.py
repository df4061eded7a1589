"""Rollouts of several threads: what a row is, which sequences are trained, and that nothing weighs more for it."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ramet.algorithms.advantages.config import GaeConfig, GigpoConfig, TreeGrpoConfig
from ramet.algorithms.advantages.gae import Gae
from ramet.algorithms.advantages.gigpo import Gigpo
from ramet.algorithms.advantages.tree_grpo import TreeGrpo
from ramet.algorithms.advantages.treerl import TreeRl
from ramet.algorithms.aggregation import TokenCounts, token_weights
from ramet.algorithms.losses.config import GmpoConfig, GspoConfig
from ramet.algorithms.losses.gmpo import Gmpo
from ramet.algorithms.losses.gspo import Gspo
from ramet.config.schema import LossAggregation, OldLogprobs, SharePrefixes
from ramet.policy.batching.partition import drawn_rows
from ramet.policy.batching.rows import Row, rows_of
from ramet.policy.batching.threads import Threads
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec
from ramet.rollout.record import GroupRecord, record_line, record_of
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.types import (
    LossInputs,
    Origin,
    Rollout,
    Segment,
    SegmentKind,
    StopReason,
    Task,
    ThreadStart,
    user_prompt,
)

MakeSpec = Callable[..., PolicySpec]
TASK = Task(id="t", prompt=user_prompt("?"))


def segment(kind: SegmentKind, turn: int, ids: Sequence[int], thread: int = 0) -> Segment:
    sampled = kind is SegmentKind.TURN
    return Segment(
        origin=Origin.SAMPLED if sampled else Origin.INSERTED,
        kind=kind,
        turn=turn,
        thread=thread,
        text="",
        token_ids=array("i", ids),
        logprobs=array("f", [-5.5] * len(ids)) if sampled else None,
        entropies=array("f", [0.5] * len(ids)) if sampled else None,
        policy_version=0 if sampled else None,
    )


def agent(id: str = "0", *, first: int = 3, second: int = 2, **rollout: Any) -> Rollout:
    """A main conversation of two turns (threads 0), and a sub-agent between them that begins with nothing of it."""
    number = sum(map(ord, id))
    prompt = segment(SegmentKind.PROMPT, 0, [1, 2])
    return Rollout(
        id=id,
        task=TASK,
        segments=(
            prompt,
            segment(SegmentKind.TURN, 0, [(number + i) % 200 + 3 for i in range(first)]),
            segment(SegmentKind.MESSAGES, 1, [7, 8, 9], thread=1),
            segment(SegmentKind.TURN, 1, [(number + 2 * i) % 200 + 11 for i in range(second)], thread=1),
            segment(SegmentKind.MESSAGES, 2, [21, 22]),
            segment(SegmentKind.TURN, 2, [31, 32]),
        ),
        thread_starts=(ThreadStart(0, 0),),
        stop=StopReason.ANSWER,
        **rollout,
    )


def grown(parent: Rollout, turn: int, ids: Sequence[int], id: str) -> Rollout:
    """A fork of `parent` that samples other tokens in `turn`, its last."""
    n = next(i for i, s in enumerate(parent.segments) if s.turn == turn and s.is_sampled)
    own = replace(segment(SegmentKind.TURN, turn, ids), thread=parent.segments[n].thread)
    return replace(parent, id=id, segments=(*parent.segments[:n], own), parent=parent.id, fork_turn=turn, n_shared=n)


def group_of(*rollouts: Rollout) -> ScoredGroup:
    scored = [ScoredRollout(rollout=rollout, reward=float(i % 2)) for i, rollout in enumerate(rollouts)]
    return ScoredGroup(task=TASK, rollouts=tuple(scored))


def recut(rollout: Rollout) -> Rollout:
    """The same tokens, with the last turn in a thread that has all before it as context."""
    *before, messages, last = rollout.segments
    moved = tuple(replace(s, thread=1) for s in (messages, last))
    return replace(rollout, segments=(*before, *moved), thread_starts=(ThreadStart(0, len(before)),))


def chat(id: str, n: int) -> Rollout:
    """One thread of two turns."""
    return Rollout(
        id=id,
        task=TASK,
        segments=(
            segment(SegmentKind.PROMPT, 0, [1, 2]),
            segment(SegmentKind.TURN, 0, range(40 + n, 40 + 2 * n)),
            segment(SegmentKind.MESSAGES, 1, [7, 8, 9]),
            segment(SegmentKind.TURN, 1, range(90 + n, 90 + 4 * n)),
        ),
        stop=StopReason.ANSWER,
    )


def test_threads_of_a_rollout_are_its_token_paths() -> None:
    rollout = agent()
    first, second = rollout.threads
    assert [s.turn for s in first.segments] == [0, 0, 2, 2] and first.own == first.segments
    assert [s.turn for s in second.segments] == [1, 1] and second.n_context == 0
    split = recut(chat("0", 2))
    assert split.threads[1].segments == split.segments and split.threads[1].own == split.segments[2:]
    assert chat("0", 2).threads[0].segments == chat("0", 2).segments


def test_a_row_has_every_token_once_and_its_sequences_have_them_again() -> None:
    rows = rows_of([group_of(agent("0"), recut(chat("1", 2)))])
    assert [list(row.thread_ids) for row in rows if row.thread_ids is not None] == [
        [0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ]
    batch = TrainBatch(rows=rows).advantage_inputs()
    assert batch.thread_ids[0].tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert batch.thread_ids[1, -1] == -1
    threads = Threads.of(rows)
    assert list(threads.rollouts) == [0, 0, 1, 1]
    assert [list(row.prompt_ids) for row in threads.rows] == [[1, 2], [], [1, 2], [1, 2, 42, 43]]
    values = [np.arange(len(row.response_ids), dtype=np.float32) for row in rows]
    again = threads.join(threads.cut(values))
    assert all(np.array_equal(left, right) for left, right in zip(values, again, strict=True))
    for name in ("response_ids", "mask", "node_ids", "turn_ids"):
        joined = threads.join([getattr(row, name) for row in threads.rows])
        assert all(np.array_equal(left, getattr(row, name)) for left, row in zip(joined, rows, strict=True))


def test_rows_of_one_thread_are_their_own_sequences() -> None:
    rows = rows_of([group_of(chat("0", 2), chat("1", 3))])
    batch = TrainBatch(rows=rows)
    assert batch.by_thread() is batch
    assert all(left is right for left, right in zip(Threads.of(rows).rows, rows, strict=True))
    assert not batch.advantage_inputs().thread_ids[1].any()


def test_a_record_gives_threads_back() -> None:
    root = agent("0")
    group = group_of(root, grown(root, 1, [50, 51], "0.0"), chat("1", 2))
    body = json.loads(record_line(GroupRecord(step=1, group=group)))
    assert record_of(body, "here").group == group
    assert "threads" not in body["rollouts"][2] and body["rollouts"][0]["threads"] == [[0, 0]]


def alternating(rows: list[Row]) -> Tensor:
    """`[N, T]`: 1 - 0.6 times the row's number on sampled tokens."""
    advantages = torch.zeros(len(rows), max(len(row.response_ids) for row in rows))
    for i, row in enumerate(rows):
        advantages[i, : len(row.mask)] = torch.from_numpy(row.mask).float() * (1.0 - 0.6 * i)
    return advantages


def trained(spec: PolicySpec, rows: list[Row]) -> Tensor:
    """The weights after two steps."""
    worker = PolicyRank(spec)
    for step in (1, 2):
        worker.update(TrainBatch(rows=rows).with_advantages(alternating(rows)).by_thread(), step)
    return torch.cat([tensor.flatten().clone() for _, tensor in worker.weights()])


def gradients(spec: PolicySpec, rows: list[Row]) -> Tensor:
    """The gradients of one optimiser step."""
    worker = PolicyRank(spec)
    found: list[Tensor] = []
    parameters = list(worker.model.parameters())
    worker.policy.optimizer.register_step_pre_hook(
        lambda *_: found.append(torch.cat([p.grad.flatten().clone() for p in parameters if p.grad is not None]))
    )
    worker.update(TrainBatch(rows=rows).with_advantages(alternating(rows)).by_thread(), 1)
    return found[0]


@pytest.mark.parametrize("aggregation", LossAggregation)
@pytest.mark.parametrize("budget", [20, 4096])
def test_a_thread_that_carries_all_before_it_changes_no_gradient(
    make_spec: MakeSpec, aggregation: LossAggregation, budget: int
) -> None:
    """At any ratio, and where the threads of a rollout are in different micro-batches."""
    rollouts = [chat("0", 2), chat("1", 5), chat("2", 3)]
    spec = make_spec(
        loss_aggregation=aggregation,
        max_microbatch_tokens=budget,
        old_logprobs=OldLogprobs.ENGINE,
        share_prefixes=SharePrefixes.NEVER,
        grad_clip=1e9,
    )
    expected = gradients(spec, rows_of([group_of(*rollouts)]))
    found = gradients(spec, rows_of([group_of(*map(recut, rollouts))]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert float(expected.abs().max()) > 1e-3


@pytest.mark.parametrize("loss", [Gspo(GspoConfig()), Gmpo(GmpoConfig())])
def test_losses_by_sequence_weigh_a_thread_by_its_share_of_the_rollout(make_spec: MakeSpec, loss: Any) -> None:
    """At ratio 1 and without weights by token, where a sequence's loss is its advantage however it is cut."""
    rollouts = [chat("0", 2), chat("1", 5)]
    spec = make_spec(
        policy_loss=loss,
        loss_aggregation=LossAggregation.SEQ_MEAN_TOKEN_MEAN,
        share_prefixes=SharePrefixes.NEVER,
        tis_cap=None,
    )
    expected = gradients(spec, rows_of([group_of(*rollouts)]))
    found = gradients(spec, rows_of([group_of(*map(recut, rollouts))]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_threads_of_10_and_30_tokens_weigh_a_quarter_and_three() -> None:
    """Of their rollout's half, also where the other thread is in another micro-batch."""
    rows = rows_of([group_of(agent("0", first=8, second=30), chat("1", 2))])
    batch = TrainBatch(rows=rows).by_thread()
    assert [row.n_trained for row in batch.rows] == [10, 30, 8]
    assert batch.by_rollout() == [[0, 1], [2]]
    counts = TokenCounts(tokens=48, rollouts=2, max_tokens=99)

    def weights(*chosen: int, elsewhere: Sequence[float]) -> list[float]:
        tokens = batch_inputs(batch, chosen)
        found = token_weights(
            LossAggregation.SEQ_MEAN_TOKEN_MEAN,
            tokens.mask,
            tokens.rollout_ids,
            counts,
            elsewhere=torch.tensor(elsewhere),
        )
        return [float(found[tokens.sequence_ids == i].sum()) for i in range(len(chosen))]

    assert weights(0, 1, 2, elsewhere=[0.0, 0.0]) == pytest.approx([1 / 8, 3 / 8, 1 / 2])
    assert weights(2, 1, elsewhere=[0.0, 10.0]) == pytest.approx([1 / 2, 3 / 8])


def batch_inputs(batch: TrainBatch, chosen: Sequence[int]) -> LossInputs:
    n = sum(len(batch.rows[i].response_ids) for i in chosen)
    zeros = [np.zeros(len(row.mask), np.float32) for row in batch.rows]
    return replace(batch, advantages=zeros).loss_inputs(chosen, torch.zeros(n), None)


def test_mini_batches_count_rollouts(make_spec: MakeSpec) -> None:
    rows = rows_of([group_of(*(agent(str(i)) for i in range(4)))])
    batch = TrainBatch(rows=rows).by_thread()
    train = make_spec(minibatches=2).train
    order = drawn_rows(batch, train, seed=1, step=1, whole_groups=False)
    assert [len({batch.rollout_of(i) for i in part}) for part in order] == [2, 2]
    assert sorted(i for part in order for i in part) == list(range(8))


def test_prefixes_computed_once_change_nothing_with_forks_and_threads(make_spec: MakeSpec) -> None:
    root = agent("0", first=9)
    group = group_of(
        root, grown(root, 1, [50, 51], "0.0"), grown(root, 2, [60, 61, 62], "0.1"), recut(chat("1", 4)), agent("2")
    )
    rows = rows_of([group])
    for aggregation in LossAggregation:
        spec = {"loss_aggregation": aggregation, "minibatches": 2, "kl_coef": 0.0}
        shared = trained(make_spec(**spec, share_prefixes=SharePrefixes.ALWAYS), rows)
        apart = trained(make_spec(**spec, share_prefixes=SharePrefixes.NEVER), rows)
        torch.testing.assert_close(shared, apart, rtol=0, atol=1e-5)


def test_old_logprobs_of_a_row_are_those_of_its_threads(make_spec: MakeSpec) -> None:
    """A thread's tokens are conditioned on its own path: the sub-agent's do not depend on the main conversation."""
    worker = PolicyRank(make_spec())
    threads = Threads.of(rows_of([group_of(agent("0"), agent("0", first=6))]))
    short, long = threads.join(worker.logprobs(threads.rows))
    np.testing.assert_allclose(short[3:8], long[6:11], atol=1e-6)
    assert not np.allclose(short[10:12], long[13:15], atol=1e-3)  # the main conversation's own last turn differs


@pytest.fixture
def forked() -> list[Row]:
    """A root of two threads (turns 0 and 2 in thread 0, 1 in thread 1), its fork at turn 2, and a root of one thread.

    Sampled tokens: positions 0, 4, 7, 8 of the root, 0, 4, 7 of the fork, 0, 4, 5, 6 of the other. Rewards: 0, 1, 0.
    """
    root = agent("0", first=1, second=1)
    return rows_of([group_of(root, grown(root, 2, [60], "0.0"), chat("1", 1))])


def test_gae_runs_along_the_row(forked: list[Row]) -> None:
    """gamma = lambda = 0.5, all values 0.1: delta is 1 - 0.1 at the fork's last token, -0.05 before it."""
    values = [np.where(row.mask, 0.1, 0).astype(np.float32) for row in forked]
    gae = Gae(GaeConfig(gamma=0.5, lam=0.5, whiten=False))
    found = gae(TrainBatch(rows=forked, values=values).advantage_inputs(gae.needs)).advantages
    middle = -0.05 + 0.25 * 0.9
    assert found[1, [0, 4, 7]].tolist() == pytest.approx([-0.05 + 0.25 * middle, middle, 0.9])


def test_gigpo_compares_turns_of_any_thread_that_began_alike(forked: list[Row]) -> None:
    """gamma = 0.5: returns of the fork's turns 0.25, 0.5, 1, all others 0; A^E is 2/3 and -1/3."""
    gigpo = Gigpo(GigpoConfig(gamma=0.5, normalize_std=False))
    found = gigpo(TrainBatch(rows=forked).advantage_inputs()).advantages
    assert found[1, [0, 4, 7]].tolist() == pytest.approx([2 / 3 + 0.25 * 2 / 3, 2 / 3 + 0.25, 2 / 3 + 0.5])
    assert found[0, [0, 4, 7, 8]].tolist() == pytest.approx([-1 / 3 - 0.25 / 3, -1 / 3 - 0.25, -5 / 6, -5 / 6])
    assert found[2, [0, 4]].tolist() == pytest.approx([-1 / 3 - 0.25 / 3, -1 / 3])


def test_treerl_values_what_forks_share_in_all_threads(forked: list[Row]) -> None:
    """Leave-one-out scores -0.5, 1, -0.5: the shared turns have two leaves and the value 0.25."""
    found = TreeRl()(TrainBatch(rows=forked).advantage_inputs()).advantages
    shared = 0.5 / 2**0.5
    assert found[0, [0, 4, 7, 8]].tolist() == pytest.approx([shared, shared, -1.25, -1.25])
    assert found[1, [0, 4, 7]].tolist() == pytest.approx([shared, shared, 1.75])
    assert found[2, [0, 4]].tolist() == pytest.approx([-1, -1])


def test_tree_grpo_counts_a_rollout_once_however_many_threads_it_has(forked: list[Row]) -> None:
    """The tree's mean is 1/2, all trees' 1/3; standard deviations are those of samples."""
    found = TreeGrpo(TreeGrpoConfig(eps=1e-12))(TrainBatch(rows=forked).advantage_inputs()).advantages
    tree, every = 0.5**0.5, 3**-0.5
    assert found[1, [0, 4, 7]].tolist() == pytest.approx([0.5 / tree + (2 / 3) / every] * 3)
    assert found[0, [0, 4, 7, 8]].tolist() == pytest.approx([-0.5 / tree - (1 / 3) / every] * 4)
    assert found[2, [0, 4]].tolist() == pytest.approx([-(1 / 3) / every] * 2)
