"""Everything that this plugin registers keeps the contract. GSM8K itself is on the hub; its own test has rows of it."""

from __future__ import annotations

from ramet.testing import check_plugin


def test_the_plugin_conforms() -> None:
    checked = check_plugin("benchmarks", skip={"benchmarks.gsm8k": "its data is loaded from the hub"})
    assert "benchmarks.arithmetic" in checked
