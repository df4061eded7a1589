"""Everything that this plugin registers keeps the contract."""

from __future__ import annotations

from ramet.testing import check_plugin


def test_the_plugin_conforms() -> None:
    assert check_plugin("aepo") == ["branch_policy.aepo", "advantage.aepo", "policy_loss.aepo"]
