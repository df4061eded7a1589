"""What algorithms ask for, against what this run has. An algorithm is never silently inert (DESIGN.md §4).

Reference and critic are built on demand, and entropies of the trainer are computed on demand; the engine's are not.
"""

from __future__ import annotations

from collections.abc import Iterator

from ramet.components.build import Components
from ramet.components.engines import engine_capabilities
from ramet.config.schema import Config, LossAggregation
from ramet.engines.protocol import Capability
from ramet.types import Need, PolicyLoss

GIVEN = {
    "advantage": {Need.ENTROPY, Need.OLD_LOGPROBS, Need.REFERENCE, Need.VALUES, Need.GREEDY_ROLLOUT},
    "policy_loss": {Need.ENTROPY, Need.OLD_LOGPROBS, Need.REFERENCE},
    "branch_policy": {Need.ENTROPY, Need.EARLIER_TURNS},
}


def check_needs(components: Components, config: Config) -> list[str]:
    """Problems of the chosen estimator, loss and branch policy with engine and configuration.

    Raises what building them raises.
    """
    loss, policy = components.loss, components.branch_policy
    needs = {
        "advantage": components.advantage.needs,
        "policy_loss": loss.needs,
        "branch_policy": getattr(policy, "needs", frozenset[Need]()),  # may be left out
    }
    problems = [problem for section, wanted in needs.items() for problem in _ungiven(config, section, wanted)]
    return [*problems, *_aggregation(config, loss)]


def _ungiven(config: Config, section: str, wanted: frozenset[Need]) -> Iterator[str]:
    who = f"{section}={getattr(config, section).name}"
    given = sorted(GIVEN[section])
    for need in sorted(wanted - set(given)):
        if need is Need.REWARDS and section == "branch_policy":
            yield f"{who} needs rewards, and this version of ramet does not report `Scored` to branch policies"
        else:
            yield f"{who} needs {need}, which is not given to it; allowed: {', '.join(given)}"
    if Need.ENTROPY in wanted and Capability.ENTROPY not in engine_capabilities(config):
        yield f"{who} needs entropies, and engine {config.engine.name!r} reports none"


def _aggregation(config: Config, loss: PolicyLoss) -> Iterator[str]:
    allowed: frozenset[str] | None = getattr(loss, "aggregation", None)  # may be left out
    if allowed is None:
        return
    who, known = f"policy_loss={config.policy_loss.name}", [mode.value for mode in LossAggregation]
    for mode in sorted(allowed - set(known)):
        yield f"{who} allows train.loss_aggregation={mode}, which there is not; there are: {', '.join(known)}"
    if config.train.loss_aggregation not in allowed:
        yield (
            f"{who} is right only with train.loss_aggregation={' or '.join(sorted(allowed))}, got "
            f"{config.train.loss_aggregation}"
        )
