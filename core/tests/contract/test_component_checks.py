"""A component of the wrong shape is refused when it is built, with what is expected and what was found."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ramet.errors import PluginError
from ramet.plugins import load_plugins
from ramet.plugins.component_checks import PROTOCOLS, misfits
from ramet.plugins.registry import Entry, Registries
from ramet.testing.doubles import echo_tool
from ramet.types import ToolSchema, per_rollout

SCHEMA = ToolSchema(name="t", description="", parameters={"type": "object"})


class SyncReward:
    def __call__(self, group: Any) -> list[float]:
        return []


class CheckingReward:
    async def __call__(self, group: Any) -> list[float]:
        return []

    async def check_task(self, task: Any) -> None: ...


class RewardOfOneRollout:
    async def __call__(self, rollout: Any, gold: str) -> float:
        return 0.0


class AsyncPolicy:
    async def decide(self, event: Any, group: Any, rng: Any) -> list[Any]:
        return []


class PolicyWithoutRandomness:
    def decide(self, event: Any, group: Any) -> list[Any]:
        return []


class LossWithoutNeeds:
    def __call__(self, batch: Any) -> Any:
        return batch


class ToolWithoutSchema:
    schema = "t"

    async def __call__(self, call: Any) -> Any:
        return call


class StepWithoutPrompt:
    async def __call__(self, state: Any, ctx: Any) -> Any:
        return state


class Empty:
    pass


class HoldsStates:
    """The members of `Stateful`; subclasses take some away with None and are looked at by `without`."""

    schema = echo_tool().schema
    forks = "copy"

    async def __call__(self, call: Any) -> Any:
        return call

    async def open(self, task: Any, seed: Any) -> Any:
        return task

    async def fork(self, state: Any) -> Any:
        return state

    async def close(self, state: Any) -> None:
        pass


def without(*names: str, **members: Any) -> Any:
    kept = {name: found for name, found in vars(HoldsStates).items() if name not in names and name[:2] != "__"}
    return type("Holds", (), {**kept, "__call__": HoldsStates.__call__, **members})()


def step_without(*names: str, **members: Any) -> Any:
    step = {"system_prompt": lambda self, tools: "", "__call__": StepWithoutPrompt.__call__}
    return without("schema", *names, **step, **members)


async def begins_with_a_task(self: Any, state: Any, task: Any) -> Any:
    return state


async def begins(self: Any, state: Any) -> Any:
    return state


async def opens_by_rollout(self: Any, rollout: str) -> None:
    pass


@pytest.mark.parametrize(
    ("kind", "built", "expected"),
    [
        ("reward", Empty(), ["lacks `async def __call__(group)`"]),
        ("reward", None, ["lacks `async def __call__(group)`"]),
        ("reward", SyncReward(), ["has a plain `__call__`; expected `async def __call__(group)`"]),
        ("reward", RewardOfOneRollout(), ["has `__call__(rollout: 'Any', gold: 'str') -> 'float'`; expected `async"]),
        ("reward", CheckingReward(), ["has an async `check_task`; expected `def check_task(task)`"]),
        ("reward", SyncReward, ["is the class SyncReward itself; the factory must return an object"]),
        ("branch policy", AsyncPolicy(), ["has an async `decide`; expected `def decide(event, group, rng)`"]),
        ("branch policy", PolicyWithoutRandomness(), ["expected `def decide(event, group, rng)`"]),
        ("policy loss", LossWithoutNeeds(), ["lacks the attribute 'needs'"]),
        ("advantage estimator", Empty(), ["lacks the attribute 'needs'", "lacks `def __call__(batch)`"]),
        ("tool", ToolWithoutSchema(), ["its attribute 'schema' is 't', not a ToolSchema"]),
        ("rollout step", StepWithoutPrompt(), ["lacks `def system_prompt(tools)`"]),
        ("tool", without("close"), ["has `forks` and `open` and `fork` but lacks `async def close(state)`"]),
        ("tool", without("fork"), ["has `forks` and `open` and `close` but lacks `async def fork(state)`"]),
        (
            "tool",
            without("forks"),
            ["has `open` and `fork` and `close` but no `forks`; expected one of 'copy', 'replay'"],
        ),
        ("tool", without(forks="deep"), ["its attribute 'forks' is 'deep'; expected one of 'copy', 'replay', 'none'"]),
        (
            "tool",
            without(open=opens_by_rollout),
            ["has `open(rollout: 'str') -> 'None'`; expected `async def open(task,"],
        ),
        ("rollout step", step_without("close"), ["but lacks `async def close(state)`"]),
        ("rollout step", step_without(begin=begins_with_a_task), ["expected `async def begin(state)`"]),
        (
            "rollout step",
            step_without("forks", "open", "fork", "close", begin=begins),
            [
                "has `begin` but no `forks`",
                "but lacks `async def open(task, seed)`",
                "but lacks `async def close(state)`",
            ],
        ),
        ("benchmark", Empty(), ["lacks the attribute 'info'", "lacks `def load(", "lacks `async def score(rollout)`"]),
    ],
)
def test_what_does_not_fit_is_named_with_what_is_expected(kind: str, built: object, expected: list[str]) -> None:
    found = misfits(built, kind)
    assert len(found) == len(expected)
    assert all(part in problem for part, problem in zip(expected, found, strict=True)), found


def test_functions_partials_and_wrapped_functions_fit() -> None:
    async def reward(group: Any, scale: float = 1.0) -> list[float]:
        return []

    @functools.wraps(reward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return reward(*args, **kwargs)

    for built in (reward, functools.partial(reward, scale=2.0), wrapped, per_rollout(lambda rollout: 1.0)):
        assert misfits(built, "reward") == []
    assert misfits(echo_tool(), "tool") == []
    assert misfits(without(), "tool") == misfits(without("fork", forks="replay"), "tool") == []
    assert misfits(step_without(begin=begins), "rollout step") == []


def test_building_names_plugin_package_and_component() -> None:
    entry: Entry[Any] = Entry(
        kind="reward", name="kind", factory=SyncReward, config=None, plugin="nice", distribution="ramet-nice"
    )
    with pytest.raises(PluginError) as error:
        entry.build()
    assert str(error.value).startswith(
        "plugin 'nice' (ramet-nice): the reward 'kind' does not keep the contract: has a plain `__call__`"
    )


def test_every_kind_of_registry_has_its_shape_and_everything_installed_fits() -> None:
    assert {registry.kind for _, registry in Registries()} == set(PROTOCOLS)
    for _, registry in load_plugins().registries:
        for entry in registry:
            if entry.config is None:
                assert misfits(entry.build(), entry.kind) == []
