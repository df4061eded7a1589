"""Components with states of rollouts, and whether a branch policy can fork those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ramet.config.schema import ToolConfig
from ramet.plugins import origin
from ramet.plugins.component_checks import is_agent
from ramet.rollout.branching.builtin import NoBranching
from ramet.types import BranchPolicy, Need, RolloutStep, Stateful, Tool
from ramet.types.branch import policy_needs

ENVIRONMENT = "rollout step"  # the name of an environment's state; no tool can have it


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulComponent:
    """A tool or a rollout step that is `Stateful`. `timeout_s` None: only the rollout's deadline bounds it."""

    name: str  # of the tool, or `ENVIRONMENT`
    owner: Stateful[Any]
    timeout_s: float | None = None
    tools: tuple[str, ...] = ()  # that use it; several of a set may share one (`state_owner`)

    @property
    def users(self) -> tuple[str, ...]:
        """The names by which it is asked for."""
        return self.tools or (self.name,)


def is_stateful(component: object) -> bool:
    """Whether it has states of rollouts. A set of tools has an `open` too, of another kind, and no `forks`."""
    return hasattr(component, "forks")


def step_component(step: RolloutStep) -> tuple[StatefulComponent, ...]:
    """The rollout step, if it is an environment."""
    return (StatefulComponent(name=ENVIRONMENT, owner=cast(Stateful[Any], step)),) if is_stateful(step) else ()


def tool_components(tools: Mapping[str, tuple[Tool, ToolConfig]]) -> tuple[StatefulComponent, ...]:
    """Return the tools with states; tools that share an owner are one component, named by the first."""
    components: dict[int, StatefulComponent] = {}
    for name, (tool, config) in tools.items():
        owner = getattr(tool, "state_owner", tool if is_stateful(tool) else None)
        if owner is None:
            continue
        component = components.get(id(owner))
        components[id(owner)] = (
            StatefulComponent(name=name, owner=cast(Stateful[Any], owner), timeout_s=config.timeout_s, tools=(name,))
            if component is None
            else replace(component, tools=(*component.tools, name))
        )
    return tuple(components.values())


def fork_problems(components: Sequence[StatefulComponent], policy: BranchPolicy) -> list[str]:
    """Why this policy cannot fork rollouts with these states, in the configuration's terms."""
    if isinstance(policy, NoBranching):
        return []
    problems = [
        f"{config_key(component)}: its state cannot be forked (forks = 'none'), and {origin(policy)} forks rollouts; "
        + (
            "if the agent may run again, set rollout_step.params.forks=replay; otherwise choose branch_policy=none"
            if is_agent(component.owner)
            else "choose branch_policy=none, or another component"
        )
        for component in components
        if component.owner.forks == "none"
    ]
    if Need.PREFIXES in policy_needs(policy):
        problems += [
            f"{config_key(component)}: its state cannot be replayed (forks = 'copy'), and {origin(policy)} starts "
            "rollouts from prefixes of earlier steps, whose states are made again; choose another branch policy, or a "
            "component with forks = 'replay'"
            for component in components
            if component.owner.forks == "copy"
        ]
        problems += [
            f"rollout_step: an agent cannot start from prefixes of earlier steps, and {origin(policy)} starts rollouts "
            "there; choose another branch policy"
            for component in components
            if is_agent(component.owner)
        ]
    tools = [component.name for component in components if component.name != ENVIRONMENT]
    if tools and any(component.name == ENVIRONMENT and component.owner.forks == "replay" for component in components):
        problems.append(
            "rollout_step: its state is replayed (forks = 'replay'), which makes the calls of its tools again, so it "
            f"cannot use tools with states: {', '.join(tools)}; choose branch_policy=none, or forks = 'copy'"
        )
    return problems


def replay_problems(components: Sequence[StatefulComponent]) -> list[str]:
    """Why rollouts with these states cannot continue from the middle of a recorded one, in the configuration's terms.

    The states are opened again and get the recorded calls.
    """
    if any(is_agent(component.owner) for component in components):
        return [
            "rollout_step: an agent runs its own loop and cannot be continued from the middle of a recorded rollout; "
            "choose a rollout step that is not an agent"
        ]
    problems = [
        f"{config_key(component)}: its state cannot be replayed (forks = {component.owner.forks!r}), and rollouts that "
        "continue from the middle need their states made again; allowed: no state, or forks = 'replay'"
        for component in components
        if component.owner.forks != "replay"
    ]
    tools = [component.name for component in components if component.name != ENVIRONMENT]
    if tools and len(tools) < len(components):
        problems.append(
            "rollout_step: its state is replayed, which makes the calls of its tools again, so it cannot be continued "
            f"with tools that have states: {', '.join(tools)}"
        )
    return problems


def config_key(component: StatefulComponent) -> str:
    """The key under which the configuration names the component."""
    return "rollout_step" if component.name == ENVIRONMENT else f"tools.{component.name}"
