"""Options of the built-in branch policies: what is out of range is named with its value."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import (
    NoBranchConfig,
    RandomBranchConfig,
    StoredPrefixConfig,
    TokenEntropyConfig,
    TreeExpansionConfig,
    ValueGuidedConfig,
)
from ramet.testing import check_branch_policy
from ramet.types.option import option_problems


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (RandomBranchConfig, {"initial_rollouts": 0}),
        (RandomBranchConfig, {"probability": 1.1}),
        (RandomBranchConfig, {"probability": float("nan")}),
        (ValueGuidedConfig, {"initial_rollouts": -1}),
        (ValueGuidedConfig, {"rounds": 0}),
        (TokenEntropyConfig, {"min_entropy": -0.1}),
        (TokenEntropyConfig, {"max_forks": 0}),
        (StoredPrefixConfig, {"probability": -0.1}),
        (StoredPrefixConfig, {"probability": 1.5}),
        (TreeExpansionConfig, {"trees": 0, "expansions": 0}),
    ],
)
def test_an_option_out_of_its_range_is_named_with_its_value(config: Any, options: Any) -> None:
    for (name, value), problem in zip(options.items(), option_problems(config(**options)), strict=True):
        assert problem.startswith(f"{name} ") and problem.endswith(f" {value}")


@pytest.mark.parametrize("calls_of_a_rollout", [1, 2, 3])
def test_a_group_without_forks_may_end_by_its_tool_calls(play: Any, calls_of_a_rollout: int) -> None:
    def script(task: str, path: str, turn: int) -> str:
        return f"<python>{path} {turn}</python>" if turn < calls_of_a_rollout else "<answer>2</answer>"

    policy = NoBranching(NoBranchConfig(calls=12))
    check_branch_policy(policy)
    (group,) = play(script, policy=policy, group_size=10).groups
    wanted = min(10, 12 // calls_of_a_rollout)  # ten rollouts are all that there may be
    assert (len(group.rollouts), group.n_unused) == (max(5, wanted), 10 - max(5, wanted))  # half start at once
