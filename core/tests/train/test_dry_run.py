from __future__ import annotations

import pytest

from ramet.config.schema import TrainConfig
from ramet.train.dry_run import staleness_in_words


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (TrainConfig(), ""),
        (
            TrainConfig(staleness=1, tis_cap=5.0),
            "groups of the next step play during the update, with weights at most 1 update old; their importance "
            "weights are cut at train.tis_cap=5.0",
        ),
        (
            TrainConfig(staleness=2),
            "groups of the next 2 steps play during the update, with weights at most 2 updates old; their importance "
            "weights are cut at train.tis_cap=2.0",
        ),
    ],
)
def test_the_plan_says_how_stale_groups_may_be_and_what_cuts_their_weights(train: TrainConfig, said: str) -> None:
    assert staleness_in_words(train) == said
