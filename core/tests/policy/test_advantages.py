"""What an estimator is told of the rollouts besides their rewards: estimators that use it, one field each. What it
returns is checked. Groups can be learned one by one.

Each field is the same in this process, through the pickle in which Ray sends groups, and read from a step's record.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from ramet.errors import PluginError
from ramet.policy.advantages import GroupToLearn, estimate, learn_group, mean_metrics, recorded_advantages
from ramet.policy.batching.rows import rows_of
from ramet.policy.batching.train_batch import TrainBatch, padded
from ramet.rollout.record import GroupRecord, read_records, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.doubles import answered_rollout
from ramet.types import (
    AdvantageInputs,
    AdvantageOutput,
    CallStatus,
    Fault,
    Need,
    Origin,
    Rollout,
    Segment,
    SegmentKind,
    StopReason,
    Task,
    ToolRecord,
    user_prompt,
)


class Plain:
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=torch.where(batch.mask, self.values(batch), 0.0))

    def values(self, batch: AdvantageInputs) -> Tensor:
        """`[N, T]`, or what expands to it."""
        return batch.rewards[:, None].expand(batch.mask.shape)


class HardAttribution(Plain):
    """A shared token gets the mean of all who share it (ARPO, arXiv 2507.19849, "hard" advantage estimation)."""

    def values(self, batch: AdvantageInputs) -> Tensor:
        names, node = batch.node_ids.unique(return_inverse=True)
        total = torch.zeros(len(names)).index_add(0, node.flatten(), super().values(batch).flatten())
        return (total / node.flatten().bincount())[node]


class NothingForOverlong(Plain):
    def values(self, batch: AdvantageInputs) -> Tensor:
        ended = torch.tensor([reason is not StopReason.LENGTH for reason in batch.stop])
        return super().values(batch) * ended[:, None]


class PaysForCalls(Plain):
    def values(self, batch: AdvantageInputs) -> Tensor:
        return super().values(batch) - 0.5 * batch.n_tool_calls[:, None]


class ByTurn(Plain):
    """Every token gets the reward of its turn; a turn without one gives 0."""

    def values(self, batch: AdvantageInputs) -> Tensor:
        assert batch.turn_rewards is not None
        return batch.turn_rewards.nan_to_num().gather(1, batch.turn_ids.clamp(min=0))


def segment(n: int, *, turn: int, kind: SegmentKind = SegmentKind.TURN) -> Segment:
    own = kind is SegmentKind.TURN
    return Segment(
        origin=Origin.SAMPLED if own else Origin.INSERTED,
        kind=kind,
        turn=turn,
        text="x" * n,
        token_ids=array("i", [5] * n),
        logprobs=array("f", [-1.0] * n) if own else None,
        policy_version=0 if own else None,
    )


@pytest.fixture
def group() -> ScoredGroup:
    """Root 0, masked; its forks 0.0 (reward 4) and 0.1 (reward 1, overlong) share one call; root 1 (reward 2)."""
    task = Task(id="t", prompt=user_prompt("?"))
    prompt, call = segment(2, turn=0, kind=SegmentKind.PROMPT), segment(2, turn=0)
    result = segment(1, turn=0, kind=SegmentKind.RESULT)
    record = ToolRecord(
        turn=0, name="x", arguments={}, status=CallStatus.OK, text="", wait_s=0.0, run_s=0.0, attempts=1
    )
    shared = (prompt, call, result)
    root = Rollout(
        id="0",
        task=task,
        segments=(*shared, segment(1, turn=1)),
        stop=StopReason.FAULT,
        fault=Fault(where="engine", message="lost"),
        tool_calls=(record,),
        turn_rewards=(0.5,),
    )
    first = Rollout(
        id="0.0",
        task=task,
        segments=(*shared, segment(2, turn=1)),
        stop=StopReason.ANSWER,
        parent="0",
        fork_turn=1,
        n_shared=3,
        tool_calls=(record, replace(record, turn=1)),
        turn_rewards=(0.5, 3.0),
    )
    second = replace(
        first,
        id="0.1",
        segments=(*shared, segment(1, turn=1)),
        stop=StopReason.LENGTH,
        tool_calls=(record,),
        turn_rewards=(0.5, None),
    )
    other = Rollout(id="1", task=task, segments=(prompt, segment(1, turn=0)), stop=StopReason.END)
    rewards = {"0": None, "0.0": 4.0, "0.1": 1.0, "1": 2.0}
    scored = [ScoredRollout(rollout=rollout, reward=rewards[rollout.id]) for rollout in (root, first, second, other)]
    return ScoredGroup(task=task, rollouts=tuple(scored))


def in_memory(group: ScoredGroup, folder: Path) -> ScoredGroup:
    return group


def pickled(group: ScoredGroup, folder: Path) -> ScoredGroup:
    again: ScoredGroup = pickle.loads(pickle.dumps(group))
    return again


def recorded(group: ScoredGroup, folder: Path) -> ScoredGroup:
    write_records(folder / "step.jsonl.gz", [GroupRecord(step=1, group=group)])
    (record,) = read_records(folder / "step.jsonl.gz")
    return record.group


@pytest.mark.parametrize("way", [in_memory, pickled, recorded])
@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (HardAttribution, [[2.5, 2.5, 0, 4, 4], [2.5, 2.5, 0, 1, 0], [2, 0, 0, 0, 0]]),
        (NothingForOverlong, [[4, 4, 0, 4, 4], [0, 0, 0, 0, 0], [2, 0, 0, 0, 0]]),
        (PaysForCalls, [[3, 3, 0, 3, 3], [0.5, 0.5, 0, 0.5, 0], [2, 0, 0, 0, 0]]),
        (ByTurn, [[0.5, 0.5, 0, 3, 3], [0.5, 0.5, 0, 0, 0], [0, 0, 0, 0, 0]]),
    ],
)
def test_an_estimator_sees_it_whichever_way_the_rollouts_came(
    group: ScoredGroup,
    tmp_path: Path,
    estimator: type[Plain],
    expected: list[list[float]],
    way: Callable[[ScoredGroup, Path], ScoredGroup],
) -> None:
    rows = rows_of([way(group, tmp_path)])
    batch, _ = estimate(estimator(), pickle.loads(pickle.dumps(TrainBatch(rows=rows))))
    assert padded(batch.advantages, torch.float32, 0).tolist() == expected


def test_what_costs_computation_is_given_by_its_need_alone(group: ScoredGroup) -> None:
    class Looks(Plain):
        def __init__(self, *needs: Need) -> None:
            self.needs = frozenset(needs)
            self.seen: set[str] = set()

        def values(self, batch: AdvantageInputs) -> Tensor:
            names = ("old_logprobs", "ref_logprobs", "values", "greedy_rewards", "entropies", "state_ids")
            self.seen = {name for name in names if getattr(batch, name) is not None}
            return super().values(batch)

    rows = rows_of([group])
    rows = [replace(row, entropies=row.engine_logprobs) for row in rows]
    arrays = [row.engine_logprobs for row in rows]
    step = TrainBatch(rows=rows, old_logprobs=arrays, ref_logprobs=arrays, values=arrays)
    fields = {
        Need.OLD_LOGPROBS: "old_logprobs",
        Need.REFERENCE: "ref_logprobs",
        Need.VALUES: "values",
        Need.GREEDY_ROLLOUT: "greedy_rewards",
        Need.ENTROPY: "entropies",
    }
    for needs in ((), *((need,) for need in fields), tuple(fields)):
        looks = Looks(*needs)
        estimate(looks, step, greedy_rewards=[0.0] * len(rows))
        assert looks.seen == {fields[need] for need in needs}


def test_an_estimator_by_group_is_given_one_group_at_once_without_the_padding_of_others() -> None:
    class Looks(Plain):
        scope: Literal["batch", "group"] = "group"

        def __init__(self) -> None:
            self.seen: list[tuple[int, ...]] = []

        def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
            self.seen.append(tuple(batch.mask.shape))
            return replace(super().__call__(batch), metrics={"rows": float(len(batch.rewards))})

    groups = []
    for name, texts in (("a", ["1", "22"]), ("b", ["4444", "55", "6"])):
        task = Task(id=name, prompt=user_prompt(name), answer=("2",))
        rollouts = [replace(answered_rollout(task, text), id=str(i)) for i, text in enumerate(texts)]
        groups.append(
            ScoredGroup(
                task=task, rollouts=tuple(ScoredRollout(rollout=r, reward=float(i)) for i, r in enumerate(rollouts))
            )
        )
    step = TrainBatch(rows=rows_of(groups))
    looks = Looks()
    batch, metrics = estimate(looks, step)
    lengths = [len(row.response_ids) for row in step.rows]
    assert looks.seen == [(2, max(lengths[:2])), (3, max(lengths[2:]))]
    assert metrics == {"rows": (2 * 2 + 3 * 3) / 5}
    at_once, _ = estimate(Plain(), step)
    assert [a.tolist() for a in batch.advantages] == [a.tolist() for a in at_once.advantages]


def test_groups_that_are_learned_one_by_one_make_the_batch_of_all_together(group: ScoredGroup) -> None:
    """As workers learn them, and ranks join them; the second group has forks whose parent has no row, and one whose
    parent has one.
    """

    class Counts(HardAttribution):
        scope: Literal["batch", "group"] = "group"

        def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
            assert batch.greedy_rewards is None
            return replace(super().__call__(batch), metrics={"rows": float(len(batch.rewards))})

    root = replace(group.rollouts[0], rollout=replace(group.rollouts[0].rollout, fault=None), reward=3.0)
    groups = [group, replace(group, rollouts=(root, *group.rollouts[1:]))]
    together, metrics = estimate(Counts(), TrainBatch(rows=rows_of(groups), kl_coef=0.5))
    learned = [
        learn_group(Counts(), GroupToLearn(number=number, group=one, greedy=None)) for number, one in enumerate(groups)
    ]
    joined = TrainBatch.of_parts([batch for batch, _ in learned], kl_coef=0.5)
    assert mean_metrics((part.metrics, part.n_rows) for _, part in learned) == metrics
    assert [row.parent for row in joined.rows] == [-1, -1, -1, -1, 3, 3, -1]
    assert pickle.dumps(unnamed(joined)) == pickle.dumps(unnamed(together))
    advantages = [recorded_advantages(batch) for batch, _ in learned]
    assert advantages[1]["0.1"].tolist() == together.advantages[5].tolist()


def unnamed(batch: TrainBatch) -> TrainBatch:
    """The batch without the names of nodes, and with copies of its arrays, which may be views."""
    rows = [replace(row, node_ids=row.node_ids * 0, parts=dict(row.parts)) for row in batch.rows]
    return replace(batch, rows=rows, advantages=[values.copy() for values in batch.advantages])


class Outside:
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=torch.ones_like(batch.mask, dtype=torch.float32))


class Wrong:
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=torch.zeros(len(batch.rewards)))


class Bare:
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: AdvantageInputs) -> Any:
        return torch.zeros_like(batch.engine_logprobs)


class Crashes:
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: AdvantageInputs) -> Any: return {}["lost"]  # fmt: skip


@pytest.mark.parametrize(
    ("estimator", "what"),
    [
        (Outside(), ": advantages are not zero outside the mask: multiply by the mask at the end"),
        (Wrong(), ": advantages has shape [2]: return [N, T], here [2, 44]"),
        (Bare(), ": returned Tensor: return an AdvantageOutput"),
        (Crashes(), " raised KeyError: 'lost'"),
    ],
)
def test_an_estimator_that_breaks_the_contract_is_named(estimator: Any, what: str) -> None:
    one = Task(id="t", prompt=user_prompt("1+1"), answer=("2",))
    with_result = replace(answered_rollout(one, "2"), id="0")
    longer = replace(answered_rollout(one, "22"), id="1")
    group = ScoredGroup(
        task=one,
        rollouts=(ScoredRollout(rollout=with_result, reward=1.0), ScoredRollout(rollout=longer, reward=0.0)),
    )
    rows = rows_of([group])
    with pytest.raises(PluginError) as caught:
        estimate(estimator, TrainBatch(rows=rows, old_logprobs=[row.engine_logprobs for row in rows]))
    line = f"core/tests/policy/test_advantages.py:{type(estimator).__call__.__code__.co_firstlineno}"
    name = f"{type(estimator).__module__}.{type(estimator).__name__}"
    assert str(caught.value) == f"advantage estimator {name}{what} ({line})"
