"""A plugin uses a reward of another one by its name."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

import ramet.plugins.sources
from ramet import ConfigError, Register, Reward, Task, hookimpl, per_rollout, reward_named, user_prompt
from ramet.plugins import Plugins, load_plugins
from ramet.testing.doubles import answered_rollout


class Side(enum.StrEnum):
    FRONT = "front"
    BACK = "back"


@dataclass(kw_only=True, slots=True)
class Inner:
    share: float = 1.0


@dataclass(kw_only=True, slots=True)
class EndsConfig:
    side: Side = Side.FRONT
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        if self.inner.share < 0:
            raise ValueError(f"inner.share must be at least 0, got {self.inner.share}")


def make(config: EndsConfig) -> Reward:
    return per_rollout(lambda rollout: config.inner.share * (config.side is Side.BACK))


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugins]:
    module: Any = ModuleType("ends_plugin")
    module.ramet_contract = "1"

    @hookimpl
    def register_rewards(register: Register[Reward]) -> None:
        register("ends", make, config=EndsConfig)
        register("plain", lambda: per_rollout(lambda rollout: 0.25))

    module.register_rewards = register_rewards
    monkeypatch.setitem(__import__("sys").modules, "ends_plugin", module)
    monkeypatch.setenv(ramet.plugins.sources.MODULES, "ends_plugin")
    load_plugins.cache_clear()
    yield load_plugins()
    load_plugins.cache_clear()


def scored(reward: Reward) -> float:
    task = Task(id="t", prompt=user_prompt("?"), answer=("x",))
    (score,) = asyncio.run(reward([answered_rollout(task, "x")]))  # type: ignore[arg-type]
    assert isinstance(score, float)
    return score


def test_options_are_those_of_its_config_nested_ones_too(plugins: Plugins) -> None:
    assert scored(reward_named("plain")) == 0.25
    assert scored(reward_named("ends")) == 0.0
    assert scored(reward_named("ends", {"side": "back", "inner": {"share": 0.5}})) == 0.5
    assert scored(reward_named("ends", {"side": Side.BACK, "inner": Inner(share=2.0)})) == 2.0
    assert scored(reward_named("ends", {"side": Side.BACK, "inner": {"share": 2}})) == 2.0


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("ends", {"sides": "back"}, "reward 'ends': no option sides; allowed: side, inner"),
        ("ends", {"side": "left"}, "reward 'ends', option side: 'left'; allowed: front, back"),
        (
            "ends",
            {"inner": {"share": "x"}},
            "reward 'ends', option inner, option share: 'x'; allowed: a value of type float",
        ),
        ("ends", {"inner": {"share": -1.0}}, "reward 'ends': inner.share must be at least 0, got -1.0"),
        ("plain", {"side": "back"}, "the reward 'plain' takes no options, got side"),
    ],
)
def test_options_that_it_does_not_take_are_named(
    plugins: Plugins, name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        reward_named(name, options)
    assert str(caught.value) == said


def test_a_reward_that_is_not_installed_is_named_with_those_that_are(plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match=r"^rewards: no reward named 'end'\. .*'ends'"):
        reward_named("end")
