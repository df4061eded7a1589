"""Rewards that teach nothing are no error, and are said."""

from __future__ import annotations

from ramet.config.compose import compose
from ramet.train.training import run


def test_rewards_that_are_equal_in_every_group_are_said_with_their_value(train, tmp_path, caplog):
    run(compose([*train, f"run.root='{tmp_path}'"], job="train"))  # no rollout of a random model has the format
    assert "step 1: in all 2 groups the rewards are equal within the group (0): no advantage" in caplog.text
