"""`registered`: a component has a name inside the block, and only there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ramet import ConfigError, InfraError, PluginError
from ramet.plugins import load_plugins
from ramet.testing import echo_tool, registered


def test_a_component_is_there_until_the_block_ends_also_after_an_error() -> None:
    tools = load_plugins().registries.tools
    before = tools.names
    with pytest.raises(InfraError), registered("tools", "mine", lambda: echo_tool("mine")):
        assert load_plugins().get("tools", "mine").build().schema.name == "mine"
        raise InfraError("down")
    assert tools.names == before


def test_what_is_installed_is_replaced_and_comes_back() -> None:
    losses = load_plugins().registries.policy_losses
    installed = losses.get("ppo_clip")
    with registered("policy_loss", "ppo_clip", dict), registered("policy_loss", "ppo_clip", list):
        assert losses.get("ppo_clip").factory is list
    assert losses.get("ppo_clip") is installed


def test_options_are_those_of_the_dataclass() -> None:
    @dataclass(frozen=True)
    class Options:
        name: str = "echo"

    with registered("tools", "mine", lambda options: echo_tool(options.name), config=Options):
        assert load_plugins().get("tools", "mine").build(Options("other")).schema.name == "other"


def test_wrong_kinds_and_names_are_refused() -> None:
    with pytest.raises(ConfigError) as caught, registered("tool", "mine", dict):
        pass
    kinds = "rollout_step, branch_policy, advantage, policy_loss, tools, rewards, benchmarks"
    assert str(caught.value) == f"kind: 'tool'; allowed: {kinds}"
    with pytest.raises(PluginError, match="not allowed"), registered("tools", "Not A Name", dict):
        pass
