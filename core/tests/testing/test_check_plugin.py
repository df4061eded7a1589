"""`check_plugin` builds and checks everything a plugin registers, and reports every problem at once."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

import ramet.testing.plugin as kit
from ramet import (
    ConfigError,
    Register,
    Rollout,
    RolloutState,
    StepContext,
    StepResult,
    StopReason,
    ToolCall,
    ToolError,
    ToolSchema,
    Untrusted,
    hookimpl,
    per_rollout,
)
from ramet.plugins import load_from
from ramet.plugins.sources import Source
from ramet.testing import check_plugin, echo_tool
from ramet.testing.rollout_step import CALLS


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


@dataclass(kw_only=True, slots=True)
class Keyed:
    key: str  # required


class Shouting:
    """Tools are called with a word that no list of usual forms has."""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return "Shout ECHO!text! to use the tool echo."

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        said = await ctx.generate(stop=["!!"])
        if said.stop is None:
            return StepResult(stop=StopReason.END)
        if state.n_tool_calls >= ctx.max_tool_calls:
            return StepResult(stop=StopReason.CALL_LIMIT)
        try:
            text = (await ctx.call_tool(ToolCall(name="echo", arguments={"text": said.text[5:-2]}))).text
        except ToolError as error:
            text = str(error)
        return StepResult(insert=(Untrusted(text=text),))


def optional() -> ModuleType:
    module = ModuleType("made_with_options")
    module.ramet_contract = "1"  # type: ignore[attr-defined]

    @hookimpl
    def register_rewards(register: Register[Any]) -> None:
        register("keyed", lambda config: per_rollout(lambda rollout: float(len(config.key))), config=Keyed)
        register("bare", lambda: per_rollout(lambda rollout: 1.0))

    @hookimpl
    def register_rollout_steps(register: Register[Any]) -> None:
        register("shouting", lambda: Shouting())

    module.register_rewards = register_rewards  # type: ignore[attr-defined]
    module.register_rollout_steps = register_rollout_steps  # type: ignore[attr-defined]
    return module


def fails() -> ModuleType:
    raise ModuleNotFoundError("No module named 'absent'")


@pytest.fixture(autouse=True)
def plugins_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [
        Source("optional", "optional", "dist-optional", "1", optional),
        Source("mine", "mine", "dist-mine", "1", made),
        Source("odd", "odd", "dist-odd", "1", fails),
    ]
    monkeypatch.setattr(kit, "load_plugins", functools.partial(load_from, sources))


def test_every_problem_is_reported_with_the_name_of_what_has_it() -> None:
    with pytest.raises(AssertionError) as caught:
        check_plugin("mine")
    message = str(caught.value)
    assert "rewards.too_many: returned 7 scores for 6 rollouts" in message
    assert re.search(r"^\* rewards\.judged: .*: rewards\.judged: set JUDGE_KEY; ", message, re.MULTILINE)
    assert "tools.other_name: " in message and "registered as 'other_name'" in message
    assert "rewards.good" not in message


def test_what_cannot_be_checked_here_is_skipped_by_name_and_the_rest_is_told() -> None:
    reasons = {"rewards.judged": "needs a key", "rewards.too_many": "broken", "tools.other_name": "broken"}
    assert check_plugin("mine", skip=reasons) == ["rewards.good"]


def test_a_skip_that_skips_nothing_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="skip names 'rewards"):
        check_plugin("mine", skip={"rewards.gone": "was renamed"})


def test_a_plugin_that_is_not_installed_or_is_broken_is_named() -> None:
    with pytest.raises(AssertionError, match="no plugin named 'nobody' is installed; installed: optional, mine, odd"):
        check_plugin("nobody")
    with pytest.raises(AssertionError, match=r"'odd' \(dist-odd\) is broken: ModuleNotFoundError: No module"):
        check_plugin("odd")


CALL = {"rollout_step.shouting": "ECHO!hello!!"}


@pytest.mark.parametrize("options", [{"key": "x"}, Keyed(key="x")])
def test_options_and_calls_make_everything_checkable_in_the_order_of_hooks_and_names(options: Any) -> None:
    checked = check_plugin("optional", options={"rewards.keyed": options}, calls=CALL)
    assert checked == ["rollout_step.shouting", "rewards.bare", "rewards.keyed"]


def test_what_cannot_be_built_or_called_says_what_to_give() -> None:
    with pytest.raises(AssertionError) as caught:
        check_plugin("optional")
    missing = "Structured config of type `Keyed` has missing mandatory value: key"
    others = "give it others in options={'rewards.keyed': {…}}, or skip it with a reason"
    assert str(caught.value).splitlines() == [
        "plugin 'optional' breaks the contract",
        "* rollout_step.shouting: no reply made the step call the tool 'echo' that it was given; tried "
        f"{list(CALLS)}: pass call=…, the text by which a policy asks for it"
        f" (core/tests/testing/test_check_plugin.py:{Shouting.__call__.__code__.co_firstlineno})",
        f"* rewards.keyed: cannot build it with its default options: {missing}; {others}",
    ]


def test_options_and_calls_that_fit_nothing_are_mistakes() -> None:
    options = {"rewards.keyed": {"kee": 1}, "rewards.bare": {"x": 1}, "rewards.gone": {}}
    with pytest.raises(AssertionError) as caught:
        check_plugin("optional", options=options, calls={**CALL, "rewards.bare": "x", "rollout_step.gone": "x"})
    unknown = "Key 'kee' not in 'Keyed'"
    assert str(caught.value).splitlines() == [
        "plugin 'optional' breaks the contract",
        "* rewards.bare: cannot build it with the options {'x': 1}: it takes no options",
        f"* rewards.keyed: cannot build it with the options {{'kee': 1}}: {unknown}",
        "* options names 'rewards.gone', which plugin 'optional' does not register",
        "* calls names 'rollout_step.gone', which plugin 'optional' does not register",
        "* calls names 'rewards.bare', which is not a rollout step",
    ]
