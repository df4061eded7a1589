"""Everything that this plugin registers keeps the contract."""

from __future__ import annotations

from ramet.testing import check_plugin


def test_the_plugin_conforms() -> None:
    assert check_plugin("distill") == ["advantage.distill", "advantage.igpo", "advantage.sdpo"]
