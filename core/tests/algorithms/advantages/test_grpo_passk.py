from __future__ import annotations

from collections.abc import Callable

import pytest

from ramet.algorithms.advantages.config import GrpoPasskConfig
from ramet.algorithms.advantages.grpo_passk import GrpoPassk
from ramet.types import AdvantageInputs

Batch = Callable[..., AdvantageInputs]


def test_only_the_best_of_a_group_has_an_advantage_its_lead(advantage_batch: Batch) -> None:
    batch = advantage_batch([1.0, 4.0, 2.0, 9.0, 3.0], [5, 5, 5, 2, 2])
    found = GrpoPassk(GrpoPasskConfig(normalize_std=False))(batch).advantages
    assert found[:, 0].tolist() == [0.0, 2.0, 0.0, 6.0, 0.0]
    normalised = GrpoPassk(GrpoPasskConfig(eps=1e-12))(batch).advantages[:, 0]
    assert normalised[1].item() == pytest.approx(2 / (7 / 3) ** 0.5)


def test_a_tie_for_the_best_gives_nobody_an_advantage(advantage_batch: Batch) -> None:
    assert not GrpoPassk(GrpoPasskConfig())(advantage_batch([1.0, 1.0, 0.0], [0] * 3)).advantages.count_nonzero()
    assert not GrpoPassk(GrpoPasskConfig(eps=1e-12))(advantage_batch([1.0, 0.0], [0] * 2)).advantages.isnan().any()


def test_a_group_of_one_is_named(advantage_batch: Batch) -> None:
    with pytest.raises(ValueError) as caught:
        GrpoPassk(GrpoPasskConfig())(advantage_batch([1.0, 2.0, 3.0], [4, 4, 9]))
    assert str(caught.value) == (
        "grpo_passk needs at least 2 rollouts in every group; group 9 has 1 (the core leaves such groups out)"
    )
