"""What the core itself registers keeps the contract."""

from __future__ import annotations

from ramet.testing import check_plugin


def test_the_built_in_components_conform() -> None:
    skip = {
        "rewards.environment": "it sums turn rewards, which the kit's rollouts lack",
        "tools.from_row": "it answers calls of a task's own tools; core/tests/rollout/test_from_row.py",
        "tools.mcp": "it needs a server; core/tests/rollout/test_mcp.py has one",
    }
    checked = check_plugin("core", skip=skip, options={"branch_policy.shuffled": {"policy": "token_entropy"}})
    assert {"rollout_step.tags", "branch_policy.random", "advantage.grpo", "policy_loss.ppo_clip"} <= set(checked)
