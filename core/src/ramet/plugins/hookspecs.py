"""The seven hooks. pluggy lists the installed plugins, once per process.

Every hook has the form `register_<kind>(register)`; call `register(name, factory, config=Dataclass)` once per thing you
offer. `factory` is a callable, or a string `"package.module:attribute"` where importing it is heavy (torch): plugins
are loaded for `ramet --help` too. With `config`, the factory is called with one instance of that dataclass, otherwise
without arguments. No pluggy call happens after start-up: configuration names things, the registry builds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, overload

import pluggy

from ramet.types import (
    AdvantageEstimator,
    Agent,
    Benchmark,
    BranchPolicy,
    PolicyLoss,
    Reward,
    RolloutStep,
    Tool,
    ToolSet,
)

hookspec = pluggy.HookspecMarker("ramet")
hookimpl = pluggy.HookimplMarker("ramet")

T_contra = TypeVar("T_contra", contravariant=True)
C = TypeVar("C")


class Register(Protocol[T_contra]):
    """The argument of a hook. Raises `PluginError` for a bad name, factory or configuration class.

    A name that another plugin (or this one) registered too is fatal for the process, once all hooks were called.
    """

    @overload
    def __call__(self, name: str, factory: Callable[[], T_contra]) -> None: ...
    @overload
    def __call__(self, name: str, factory: Callable[[C], T_contra], *, config: type[C]) -> None: ...
    @overload
    def __call__(self, name: str, factory: str, *, config: type[Any] | None = None) -> None: ...


@hookspec
def register_rollout_steps(register: Register[RolloutStep | Agent]) -> None:
    """Offer turn protocols, environments and agents. Fills the configuration group `rollout_step`."""


@hookspec
def register_branch_policies(register: Register[BranchPolicy]) -> None:
    """Offer branch policies. Fills the configuration group `branch_policy`."""


@hookspec
def register_advantages(register: Register[AdvantageEstimator]) -> None:
    """Offer advantage estimators. Fills the configuration group `advantage`."""


@hookspec
def register_policy_losses(register: Register[PolicyLoss]) -> None:
    """Offer policy losses. Fills the configuration group `policy_loss`."""


@hookspec
def register_tools(register: Register[Tool | ToolSet]) -> None:
    """Offer tools, and sets of them. Fills the configuration group `tools`."""


@hookspec
def register_rewards(register: Register[Reward]) -> None:
    """Offer rewards. Fills the configuration group `rewards`."""


@hookspec
def register_benchmarks(register: Register[Benchmark]) -> None:
    """Offer benchmarks. Fills the configuration group `benchmarks`."""
