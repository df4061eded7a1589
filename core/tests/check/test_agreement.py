"""The numbers of the comparison, by hand."""

from __future__ import annotations

from math import exp, log, nan

import numpy as np
import pytest

from ramet.check.agreement import DEFAULTS, Agreement, Statistic, Threshold, Token, compare
from ramet.config.schema import Dtype
from ramet.policy.batching.rows import Floats, Row
from ramet.testing.batches import root_row


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def row(mask: list[bool], engine: Floats, entropies: Floats | None) -> Row:
    ids = np.zeros(len(mask), np.int32)
    return root_row(ids[:1], ids, mask=np.array(mask), logprobs=engine, entropies=entropies)


def compared(*trainer: float, engine: Floats | None = None, cap: float | None = 2.0) -> Agreement:
    """Four tokens, the second inserted; the engine says -1 of each and an entropy of 2, the trainer an entropy of 2."""
    mu = floats(-1, 0, -1, -1) if engine is None else engine
    one = row([True, False, True, True], mu, floats(2, 0, 2, 2))
    return compare([one], [floats(*trainer)], [floats(2, 9, 2, 2)], tis_cap=cap)


def test_only_sampled_tokens_are_compared() -> None:
    found = compared(-1, 50, -1.5, -1)
    assert found.tokens == 3
    assert found.logprobs.mean == pytest.approx(0.5 / 3)
    assert found.logprobs.largest == pytest.approx(0.5)
    assert found.entropies is not None and found.entropies.largest == 0


def test_the_worst_token_is_named_by_its_place_in_its_response() -> None:
    first = row([True], floats(-1), None)
    second = row([False, True, True], floats(0, -1, -1), None)
    found = compare([first, second], [floats(-1.1), floats(0, -1, -3)], [floats(0), floats(0, 0, 0)], tis_cap=None)
    assert found.worst == Token(row=1, position=2, engine=-1, trainer=-3)
    assert found.entropies is None


def test_weights_are_truncated_at_the_cap() -> None:
    found = compared(-1 + log(4), 0, -1, -1).weights
    assert found.largest == pytest.approx(4) and found.least == pytest.approx(1)
    assert found.mean == pytest.approx((2 + 1 + 1) / 3)
    assert found.truncated == pytest.approx(1 / 3)
    assert found.effective == pytest.approx(16 / (3 * 6))
    assert compared(-1 + log(4), 0, -1, -1, cap=None).weights.mean == pytest.approx(2)


def test_in_float32_a_single_token_counts_and_in_bfloat16_one_in_a_hundred() -> None:
    n = 200
    mu, trainer = np.full(n, -1, np.float32), np.full(n, -1, np.float32)
    trainer[7] = -2
    found = compare([row([True] * n, mu, None)], [trainer], [mu], tis_cap=2.0)
    assert found.exceeds(DEFAULTS[Dtype.FLOAT32])
    assert not found.exceeds(DEFAULTS[Dtype.BFLOAT16])
    trainer[:20] = -2
    assert compare([row([True] * n, mu, None)], [trainer], [mu], tis_cap=2.0).exceeds(DEFAULTS[Dtype.BFLOAT16])


def test_entropies_that_differ_are_a_disagreement_too() -> None:
    one = row([True], floats(-1), floats(2))
    found = compare([one], [floats(-1)], [floats(2.5)], tis_cap=2.0)
    assert found.logprobs.largest == 0 and found.exceeds(Threshold(statistic=Statistic.LARGEST, value=0.1))


@pytest.mark.parametrize("statistic", list(Statistic))
def test_what_is_not_a_number_is_never_an_agreement(statistic: Statistic) -> None:
    found = compared(-1, 0, nan, -1)
    assert found.exceeds(Threshold(statistic=statistic, value=exp(50)))
    assert found.worst.position == 2
