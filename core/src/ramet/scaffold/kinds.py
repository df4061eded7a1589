"""The kinds of package that `ramet new` writes: for the seven hooks, and for other entry points."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.plugins.extensions import COMMANDS, TRACKERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of plugin."""

    name: str  # on the command line, and the folder of its templates
    noun: str  # in texts
    registry: str  # field of `Registries`; "" for what no hook registers
    use: str  # arguments of `ramet` that select it; `{name}` is the registered name
    defines: str = ""  # the Python name that its template defines, from `{name}` or `{Name}`; "": none
    needs: tuple[str, ...] = ()  # packages that its template imports
    extra: str = ""  # of Ramet, that it needs
    test_extra: str = ""  # of Ramet, that its tests need
    group: str = "ramet"  # of its entry point
    attribute: str = ""  # of the module that the entry point names; "": the module itself


def camel(name: str) -> str:
    """`leave_one_out` → `LeaveOneOut`."""
    return "".join(part.capitalize() for part in name.split("_"))


KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="tool", noun="tool", registry="tools", use="train tools=[{name}]", defines="{name}"),
        Kind(name="reward", noun="reward", registry="rewards", use="train rewards=[{name}]"),
        Kind(
            name="benchmark",
            noun="benchmark",
            registry="benchmarks",
            use="eval benchmarks=[{name}]",
            defines="{Name}Benchmark",
        ),
        Kind(
            name="advantage",
            noun="advantage estimator",
            registry="advantages",
            use="train advantage={name}",
            defines="{Name}Estimator",
            needs=("torch>=2.9",),
        ),
        Kind(
            name="policy_loss",
            noun="policy loss",
            registry="policy_losses",
            use="train policy_loss={name}",
            defines="{Name}Loss",
            needs=("torch>=2.9",),
        ),
        Kind(
            name="branch_policy",
            noun="branch policy",
            registry="branch_policies",
            use="train branch_policy={name}",
            defines="{Name}Policy",
        ),
        Kind(
            name="rollout_step",
            noun="rollout step",
            registry="rollout_steps",
            use="train rollout_step={name}",
            defines="{Name}Step",
        ),
        Kind(
            name="environment",
            noun="environment",
            registry="rollout_steps",
            use="train rollout_step={name} tools=[] rewards=[environment]",
            defines="{Name}Step",
        ),
        Kind(
            name="agent",
            noun="agent",
            registry="rollout_steps",
            use="train rollout_step={name}",
            defines="{Name}Agent",
            needs=("openai>=3,<4",),
            extra="openai",  # of the gateway
            test_extra="train",  # of the tokenizer
        ),
        Kind(name="tool_set", noun="tool set", registry="tools", use="train tools=[{name}]", defines="{Name}"),
        Kind(
            name="tracker",
            noun="tracker",
            registry="",
            use="train trackers=[console,{name}]",
            defines="{Name}Tracker",
            group=TRACKERS,
            attribute="make",
        ),
        Kind(
            name="command",
            noun="command",
            registry="",
            use="{name}",
            defines="{name}",
            group=COMMANDS,
            attribute="{name}",
        ),
    )
}
