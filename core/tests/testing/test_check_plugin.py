"""`check_plugin` builds and checks everything a plugin registers, and reports every problem at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

import ramet.testing.plugin as kit
from ramet import ConfigError, Register, Rollout, hookimpl, per_rollout
from ramet.plugins import Source, load_from
from ramet.testing import check_plugin, echo_tool


async def too_many(group: Sequence[Rollout]) -> Sequence[float]:
    return [1.0] * (len(group) + 1)


def needs_a_key() -> Any:
    raise ConfigError("rewards.judged: set JUDGE_KEY")


def made() -> ModuleType:
    module = ModuleType("made_here")
    module.ramet_contract = "1"  # type: ignore[attr-defined]

    @hookimpl
    def register_rewards(register: Register[Any]) -> None:
        register("good", lambda: per_rollout(lambda rollout: 1.0))
        register("too_many", lambda: too_many)
        register("judged", needs_a_key)

    @hookimpl
    def register_tools(register: Register[Any]) -> None:
        register("other_name", lambda: echo_tool("echo"))

    module.register_rewards = register_rewards  # type: ignore[attr-defined]
    module.register_tools = register_tools  # type: ignore[attr-defined]
    return module


def fails() -> ModuleType:
    raise ModuleNotFoundError("No module named 'absent'")


@pytest.fixture(autouse=True)
def house(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [Source("mine", "mine", "dist-mine", "1", made), Source("odd", "odd", "dist-odd", "1", fails)]
    monkeypatch.setattr(kit, "load_plugins", functools.partial(load_from, sources))


def test_every_problem_is_reported_with_the_name_of_what_has_it() -> None:
    with pytest.raises(AssertionError) as caught:
        check_plugin("mine")
    message = str(caught.value)
    assert "rewards.too_many: returned 7 scores for 6 rollouts" in message
    assert "rewards.judged: cannot build it with its default options: rewards.judged: set JUDGE_KEY" in message
    assert "tools.other_name: " in message and "registered as 'other_name'" in message
    assert "rewards.good" not in message


def test_what_cannot_be_checked_here_is_skipped_by_name_and_the_rest_is_told() -> None:
    reasons = {"rewards.judged": "needs a key", "rewards.too_many": "broken", "tools.other_name": "broken"}
    assert check_plugin("mine", skip=reasons) == ["rewards.good"]


def test_a_skip_that_skips_nothing_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="skip names 'rewards"):
        check_plugin("mine", skip={"rewards.gone": "was renamed"})


def test_a_plugin_that_is_not_installed_or_is_broken_is_named() -> None:
    with pytest.raises(AssertionError, match="no plugin named 'nobody' is installed; installed: mine, odd"):
        check_plugin("nobody")
    with pytest.raises(AssertionError, match=r"'odd' \(dist-odd\) is broken: ModuleNotFoundError: No module"):
        check_plugin("odd")
