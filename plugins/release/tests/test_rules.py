"""The released rules and the documented ones, beside their golden values, and what their options refuse."""

from __future__ import annotations

import pytest

from ramet.config.catalog import typed_options
from ramet.errors import ConfigError
from ramet.testing import check_plugin
from ramet_release.aepo import AepoRelease
from ramet_release.arpo import ArpoRelease
from ramet_release.config import AepoReleaseConfig, ArpoReleaseConfig, ReleaseRule
from ramet_release.policy import BranchDraw


def test_the_plugin_conforms() -> None:
    assert check_plugin("release")


@pytest.mark.parametrize(
    ("draw", "now", "branches"), [(0.4, 0.3, True), (0.6, 0.3, False), (0.4, 0.02, False), (0.499, 0.11, True)]
)
def test_the_documented_rule_asks_for_threshold_and_draw(draw: float, now: float, branches: bool) -> None:
    """Hand-computed: 0.2 * 0.5 = 0.1 must be exceeded, and the draw be under 0.5."""
    policy = ArpoRelease(ArpoReleaseConfig(rule=ReleaseRule.THRESHOLD_AND_DRAW))
    assert policy.branches(BranchDraw(draw=draw, now=now, base=0.5)) is branches


@pytest.mark.parametrize(
    ("draw", "now", "consecutive", "branches"),
    [(0.4, 1.0, 0, False), (0.6, 1.0, 0, True), (0.41, 1.5, 0, True), (0.6, 1.0, 10, True), (0.99, 1.0, 11, False)],
)
def test_the_draw_is_the_other_way_round_and_penalised(
    draw: float, now: float, consecutive: int, branches: bool
) -> None:
    """Hand-computed, against a base of 1: (U + 0.2 (H - 1)) (1 - 0.05 c) >= p; p is 0.25 for c = 10, else 0.5."""
    policy = AepoRelease(AepoReleaseConfig(branch_probability=0.25 if consecutive == 10 else 0.5))
    assert policy.branches(BranchDraw(draw=draw, now=now, base=1.0, consecutive=consecutive)) is branches


def test_a_probe_and_a_number_of_rows_are_refused_together() -> None:
    with pytest.raises((ConfigError, ValueError)) as caught:
        typed_options(AepoReleaseConfig, {"enable_dynamic_rollouts": True, "initial_rollouts": 2})
    assert str(caught.value) == (
        "initial_rollouts is 2, but with enable_dynamic_rollouts=true the probe says how many rows start; leave "
        "one of them out"
    )


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        (AepoReleaseConfig, "initial_entropy_tokens", 0),
        *[
            (options, name, value)
            for options in (ArpoReleaseConfig, AepoReleaseConfig)
            for name, value in (("initial_rollouts", 0), ("beam_size", 0), ("branch_probability", 1.5))
        ],
    ],
)
def test_options_that_cannot_be_are_refused(options: type, name: str, value: float) -> None:
    with pytest.raises((ConfigError, ValueError), match=f"^{name} .* {value}$"):
        typed_options(options, {name: value})
