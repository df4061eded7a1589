from __future__ import annotations

import pytest
import torch

from ramet.algorithms.aggregation import TokenCounts, aggregate, token_weights
from ramet.config.schema import LossAggregation

LENGTHS = [3, 1, 5, 2]
MODES = list(LossAggregation)


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, TokenCounts]:
    """Losses 0, 1, 2, …; the second token of every sequence that has one is not trained."""
    positions = torch.cat([torch.arange(n) for n in LENGTHS])
    sequences = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    mask = positions != 1
    return torch.arange(11.0), mask, sequences, TokenCounts(tokens=int(mask.sum()), rollouts=4, max_tokens=10)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (LossAggregation.TOKEN_MEAN, (0 + 2 + 3 + 4 + 6 + 7 + 8 + 9) / 8),
        (LossAggregation.SEQ_MEAN_TOKEN_SUM, (2 + 3 + 25 + 9) / 4),
        (LossAggregation.SEQ_MEAN_TOKEN_MEAN, (1 + 3 + 25 / 4 + 9) / 4),
        (LossAggregation.SEQ_MEAN_TOKEN_SUM_NORM, (2 + 3 + 25 + 9) / (4 * 10)),
        (LossAggregation.TOKEN_SUM_NORM, (2 + 3 + 25 + 9) / 10),
    ],
)
def test_every_mode_by_hand(mode: LossAggregation, expected: float) -> None:
    losses, mask, sequences, counts = batch()
    assert aggregate(losses, token_weights(mode, mask, sequences, counts)).item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut", [[4], [1, 3], [2, 2], [1, 1, 1, 1]])
def test_micro_batches_add_up_to_the_whole_however_they_are_cut(mode: LossAggregation, cut: list[int]) -> None:
    losses, mask, sequences, counts = batch()
    whole = aggregate(losses, token_weights(mode, mask, sequences, counts))
    total, first = 0.0, 0
    for size in cut:
        own = (sequences >= first) & (sequences < first + size)
        weights = token_weights(mode, mask[own], sequences[own] - first, counts)
        total += aggregate(losses[own], weights).item()
        first += size
    assert total == pytest.approx(whole.item(), rel=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_what_stands_outside_the_mask_counts_nothing(mode: LossAggregation) -> None:
    losses, mask, sequences, counts = batch()
    weights = token_weights(mode, mask, sequences, counts)
    expected = aggregate(losses, weights)
    losses = torch.where(mask, losses, float("nan")).requires_grad_()
    found = aggregate(losses, weights)
    found.backward()
    assert found.item() == expected.item()
    assert losses.grad is not None
    assert torch.equal(losses.grad, weights)


@pytest.mark.parametrize("mode", MODES)
def test_a_sequence_without_trained_tokens_is_finite(mode: LossAggregation) -> None:
    mask = torch.tensor([True, False, False])
    counts = TokenCounts(tokens=1, rollouts=2, max_tokens=2)
    weights = token_weights(mode, mask, torch.tensor([0, 1, 1]), counts)
    assert weights.isfinite().all()
    assert weights[1:].tolist() == [0.0, 0.0]
