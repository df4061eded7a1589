"""What the core itself registers keeps the contract."""

from __future__ import annotations

from ramet.testing import check_plugin


def test_the_built_in_components_conform() -> None:
    assert check_plugin("core")
