"""Packing is exact: a micro-batch gives the logits and gradients of one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

from ramet.policy.batching.packing import (
    MicroBatch,
    PackedLayout,
    first_fit,
    micro_batch,
    micro_batches,
    model_cost,
    similar_lengths,
)
from ramet.policy.batching.rows import Row
from ramet.policy.logprob_model import hidden_states

MakeRows = Callable[..., list[Row]]
Forward = Callable[[PreTrainedModel, MicroBatch], Tensor]


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(tiny: Path, request: pytest.FixtureRequest) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tiny, attn_implementation=request.param)
    return loaded


def trained_logits(model: PreTrainedModel, batch: MicroBatch, forward: Forward) -> list[Tensor]:
    """Logits that predict the trained tokens, one `[n, V]` per row."""
    logits = model.lm_head(forward(model, batch).flatten(0, 1)[batch.predict])
    ends = torch.tensor(batch.lengths, device=logits.device).cumsum(0)
    owner = torch.bucketize(batch.response, ends, right=True)
    return [logits[owner == i] for i in range(len(batch.rows))]


def gradient(model: PreTrainedModel, logits: list[Tensor]) -> Tensor:
    model.zero_grad()
    sum((piece.log_softmax(-1)[:, 7].sum() for piece in logits), torch.zeros(())).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_exact(
    model: PreTrainedModel, rows: list[Row], layout: PackedLayout, forward: Forward = hidden_states
) -> None:
    """Fails if a row's logits or the gradients differ from those of one row at a time."""
    batch = micro_batch(rows, list(range(len(rows))), layout)
    together = trained_logits(model, batch, forward)
    alone = [
        trained_logits(model, micro_batch(rows, [i], PackedLayout.PADDED), hidden_states)[0] for i in range(len(rows))
    ]
    for i, (found, expected) in enumerate(zip(together, alone, strict=True)):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=lambda m, i=i: f"row {i} leaks: {m}")
    torch.testing.assert_close(gradient(model, together), gradient(model, alone), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", PackedLayout)
def test_a_micro_batch_is_exact(model: PreTrainedModel, make_rows: MakeRows, layout: PackedLayout) -> None:
    assert_exact(model, make_rows(6), layout)


@pytest.mark.gpu
def test_a_packed_micro_batch_is_exact_under_flash_attention(tiny: Path, make_rows: MakeRows) -> None:
    """Its kernels know bfloat16 only, so the bound is that of a number with three digits; a leak costs nats."""
    if not (torch.cuda.is_available() and is_flash_attn_2_available()):
        pytest.skip("flash attention needs a CUDA device and the package flash-attn")
    model = AutoModelForCausalLM.from_pretrained(
        tiny, attn_implementation="flash_attention_2", dtype=torch.bfloat16
    ).cuda()
    rows = make_rows(6)
    batch = micro_batch(rows, list(range(6)), PackedLayout.PACKED).to(model.device)
    together = trained_logits(model, batch, hidden_states)
    for i, found in enumerate(together):
        alone = micro_batch(rows, [i], PackedLayout.PADDED).to(model.device)
        torch.testing.assert_close(found, trained_logits(model, alone, hidden_states)[0], rtol=0.02, atol=0.05)


def without_positions(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    return model.base_model(input_ids=batch.input_ids, use_cache=False).last_hidden_state


def with_a_cache(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    return model.base_model(input_ids=batch.input_ids, position_ids=batch.position_ids).last_hidden_state


@pytest.mark.parametrize("leaky", [without_positions, with_a_cache])
def test_a_leaking_forward_pass_is_detected(model: PreTrainedModel, make_rows: MakeRows, leaky: Forward) -> None:
    with pytest.raises(AssertionError, match=r"row \d leaks"):
        assert_exact(model, make_rows(6), PackedLayout.PACKED, leaky)


def test_a_token_of_another_sequence_changes_nothing(model: PreTrainedModel, make_rows: MakeRows) -> None:
    rows = make_rows(3)
    before = trained_logits(model, micro_batch(rows, [0, 1, 2], PackedLayout.PACKED), hidden_states)
    rows[0].response_ids[:] = 5
    after = trained_logits(model, micro_batch(rows, [0, 1, 2], PackedLayout.PACKED), hidden_states)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1]) and torch.equal(before[2], after[2])


@pytest.mark.parametrize("layout", PackedLayout)
def test_every_trained_token_is_predicted_from_the_position_before_it(
    make_rows: MakeRows, layout: PackedLayout
) -> None:
    rows = make_rows(5)
    batch = micro_batch(rows, [3, 0, 4], layout)
    chosen = [rows[i] for i in (3, 0, 4)]
    assert batch.targets.tolist() == [int(t) for row in chosen for t in row.response_ids[row.mask]]
    fed = batch.input_ids.flatten()[batch.predict].tolist()
    before = [[*row.prompt_ids[-1:], *row.response_ids[:-1]] for row in chosen]
    assert fed == [
        int(t) for row, ids in zip(chosen, before, strict=True) for t, m in zip(ids, row.mask, strict=True) if m
    ]
    mask = torch.zeros(sum(batch.lengths), dtype=torch.bool).index_fill(0, batch.response, True)
    assert mask.tolist() == [bool(m) for row in chosen for m in row.mask]
    assert batch.n_tokens == sum(row.n_tokens - 1 for row in chosen)


@pytest.mark.parametrize("pack", [first_fit, similar_lengths])
@pytest.mark.parametrize("budget", [1, 10, 30, 1000])
def test_bins_hold_every_sequence_once_within_the_budget(
    pack: Callable[[list[int], int], list[list[int]]], budget: int
) -> None:
    lengths = [7, 3, 12, 3, 9, 30, 1, 7, 7, 28]
    bins = pack(lengths, budget)
    assert sorted(i for chosen in bins for i in chosen) == list(range(len(lengths)))
    for chosen in bins:
        size = sum(lengths[i] for i in chosen)
        width = len(chosen) * max(lengths[i] for i in chosen)
        assert len(chosen) == 1 or (size if pack is first_fit else width) <= budget
    assert bins == pack(lengths, budget)


def test_first_fit_by_hand() -> None:
    assert first_fit([4, 6, 5, 3, 2], 10) == [[1, 0], [2, 3, 4]]


def test_similar_lengths_keep_a_long_sequence_apart() -> None:
    assert similar_lengths([10, 100, 9, 95, 10], 1000) == [[1, 3], [0, 4, 2]]


def test_without_a_kernel_that_knows_borders_rows_of_like_length_are_padded(make_rows: MakeRows) -> None:
    rows = make_rows(40)
    batches = micro_batches(rows, budget=200, cost=model_cost(32, torch.device("cpu")))
    assert sorted(i for batch in batches for i in batch.rows) == list(range(40))
    assert all(batch.input_ids.numel() <= 200 for batch in batches)
    filled = sum(batch.input_ids.numel() for batch in batches)
    assert filled <= 1.15 * sum(batch.n_tokens for batch in batches)


def test_with_a_kernel_that_knows_borders_nothing_is_filled(make_rows: MakeRows) -> None:
    batches = micro_batches(make_rows(40), budget=200, cost=None)
    assert all(batch.input_ids.shape == (1, batch.n_tokens) for batch in batches)


def test_a_row_without_a_prompt_is_refused(make_rows: MakeRows) -> None:
    row = make_rows(1)[0]
    with pytest.raises(ValueError, match="rollout '0' of task '0' has no prompt"):
        micro_batches([replace(row, prompt_ids=row.prompt_ids[:0])], budget=100, cost=None)
