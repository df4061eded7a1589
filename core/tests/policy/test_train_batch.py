"""A train batch cuts padded results to each row's tokens and pickles as it is."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch

MakeRows = Callable[..., list[Row]]
MakeAdvantages = Callable[[list[Row]], Tensor]


def test_padded_advantages_and_returns_become_one_array_per_row(
    make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(3)
    advantages = make_advantages(rows)
    batch = TrainBatch(rows=rows).with_advantages(advantages, returns=2 * advantages)
    for i, row in enumerate(rows):
        expected = advantages[i, : len(row.response_ids)].numpy()
        assert np.array_equal(batch.advantages[i], expected)
        assert batch.returns is not None and np.array_equal(batch.returns[i], 2 * expected)
    assert batch.old_logprobs is batch.ref_logprobs is batch.values is None


def test_inputs_are_the_chosen_rows_one_after_the_other(make_rows: MakeRows, make_advantages: MakeAdvantages) -> None:
    rows = make_rows(3)
    batch = TrainBatch(rows=rows, old_logprobs=[row.engine_logprobs for row in rows])
    batch = batch.with_advantages(make_advantages(rows))
    lengths = [len(rows[2].response_ids), len(rows[0].response_ids)]
    inputs = batch.loss_inputs([2, 0], torch.zeros(sum(lengths)), None)
    assert inputs.mask.tolist() == [*rows[2].mask.tolist(), *rows[0].mask.tolist()]
    assert inputs.sequence_ids.tolist() == [0] * lengths[0] + [1] * lengths[1]
    assert inputs.advantages.tolist() == [*batch.advantages[2].tolist(), *batch.advantages[0].tolist()]
    assert torch.equal(inputs.old_logprobs, inputs.engine_logprobs)
    assert inputs.ref_logprobs is inputs.returns is None


def test_advantages_on_inserted_tokens_are_no_signal(make_rows: MakeRows) -> None:
    rows = make_rows(2)
    row = rows[1]
    silent = np.zeros(len(rows[0].mask), np.float32)
    batch = TrainBatch(rows=rows, advantages=[silent, np.where(row.mask, 0, 1).astype(np.float32)])
    assert not batch.has_signal(0) and not batch.has_signal(1)


def test_a_batch_survives_pickling(make_rows: MakeRows, make_advantages: MakeAdvantages) -> None:
    rows = make_rows(2)
    batch = TrainBatch(rows=rows).with_advantages(make_advantages(rows))
    again = pickle.loads(pickle.dumps(batch))
    assert np.array_equal(again.advantages[1], batch.advantages[1])
    assert again.rows[1].rollout_id == rows[1].rollout_id and again.returns is None
