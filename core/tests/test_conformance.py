"""What the core itself registers keeps the contract."""

from __future__ import annotations

from ramet.testing import check_plugin


def test_the_built_in_components_conform() -> None:
    checked = check_plugin("core", skip={"rewards.environment": "it sums turn rewards, which the kit's rollouts lack"})
    assert {"rollout_step.tags", "branch_policy.random", "advantage.grpo", "policy_loss.ppo_clip"} <= set(checked)
