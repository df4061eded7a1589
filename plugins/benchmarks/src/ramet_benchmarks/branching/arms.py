"""Arms of the leaderboard: the policies that the user names, and the controls that each of them is compared with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ramet import ConfigError
from ramet.config.compose import compose
from ramet.plugins import load_plugins
from ramet.types import Need
from ramet.types.branch import policy_needs

CONTROLS = {  # without forks, without forks at about as many tool calls as with them, and with forks by chance
    "none": ("algorithm=grpo",),
    "none6": ("algorithm=grpo", "rollout.group_size=6"),
    "random": ("algorithm=grpo", "branch_policy=random"),
}
FEWER = "none6"  # the control at equal calls


@dataclass(frozen=True, slots=True)
class Arm:
    """A branch policy with its options. `shuffled`: the control that forks as often and as deep, at other turns.

    None for a policy that `branch_policy=shuffled` would not change, as it reads no entropies, or that it refuses, as
    it has a separate rollout method.
    """

    name: str
    keys: tuple[str, ...]
    shuffled: Arm | None = None


def arm_of(text: str) -> Arm:
    """Read `NAME` or `NAME:KEY=VALUE;KEY=VALUE`, a registered branch policy with its options.

    Raises `ConfigError` for an unknown policy or option.
    """
    policy, _, given = text.partition(":")
    if policy in CONTROLS or policy == "shuffled":
        raise ConfigError(f"{text}: is a control, which is always run; name another policy")
    entry = load_plugins().get("branch_policies", policy)
    options = [part for part in given.split(";") if part]
    if wrong := [part for part in options if not re.match(r"[\w.]+=", part)]:
        raise ConfigError(f"{text}: {wrong[0]!r} is not KEY=VALUE; write options as {policy}:KEY=VALUE;KEY=VALUE")
    name = re.sub(r"[^\w.=+-]+", "_", text)
    keys = ("algorithm=grpo", f"branch_policy={policy}", *(f"branch_policy.params.{part}" for part in options))
    config = compose(["model.path=m", *keys], job="train").config
    built = entry.build(config.branch_policy.params)
    if Need.ENTROPY not in policy_needs(built) or hasattr(built, "rollout_method"):
        return Arm(name, keys)
    shuffled = ("branch_policy=shuffled", f"branch_policy.params.policy={policy}")
    inner = (f"branch_policy.params.params.{part}" for part in options)
    return Arm(name, keys, Arm(f"{name}_shuffled", ("algorithm=grpo", *shuffled, *inner)))


def arms_of(policies: Sequence[str]) -> list[Arm]:
    """Return the controls and the named policies, each followed by its shuffled control."""
    named = [arm_of(text) for text in dict.fromkeys(policies)]
    controls = [Arm(name, keys) for name, keys in CONTROLS.items()]
    return [*controls, *(arm for one in named for arm in (one, one.shuffled) if arm is not None)]
