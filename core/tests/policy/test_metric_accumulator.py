from __future__ import annotations

import pytest
import torch

from ramet.policy.metric_accumulator import MetricAccumulator

ALL = torch.arange(2)


def test_the_effective_sample_size_is_that_of_all_micro_batches_together() -> None:
    metrics = MetricAccumulator()
    metrics.effective_share("ess", torch.tensor([1.0, 9.0]), ALL[:1])
    metrics.effective_share("ess", torch.tensor([3.0, 0.0]), ALL)
    assert metrics.result() == {"ess": pytest.approx(4**2 / (3 * 10))}


def test_equal_weights_are_fully_effective_and_none_are_not() -> None:
    for weight, share in ((0.5, 1.0), (0.0, 0.0)):
        metrics = MetricAccumulator()
        metrics.effective_share("ess", torch.full((2,), weight), ALL)
        assert metrics.result() == {"ess": pytest.approx(share)}


def test_no_tokens_have_no_share() -> None:
    metrics = MetricAccumulator()
    metrics.effective_share("ess", torch.ones(2), ALL[:0])
    assert metrics.result() == {}
