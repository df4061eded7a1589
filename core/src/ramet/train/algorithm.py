"""From scored groups to advantages: what the estimator sees, and the check of what it returns."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ramet.errors import ConfigError, PluginError, RametError
from ramet.output_checks import advantage_problem
from ramet.plugin_code import defined_at, failed, named
from ramet.plugins import origin
from ramet.policy.batching.rows import Floats, Row, advantage_inputs, engine_entropies
from ramet.policy.mutation_guard import unchanged
from ramet.types import AdvantageEstimator, AdvantageInputs, AdvantageOutput, Need


def estimate(
    estimator: AdvantageEstimator,
    rows: Sequence[Row],
    *,
    old_logprobs: Sequence[Floats] | None = None,
    ref_logprobs: Sequence[Floats] | None = None,
    values: Sequence[Floats] | None = None,
    greedy_rewards: Sequence[float] | None = None,
) -> AdvantageOutput:
    """Advantages `[N, T]` of these rows. The estimator sees what its `needs` name of what is given.

    Raises `PluginError` if it breaks the contract.
    """
    needs, name = estimator.needs, f"advantage estimator {origin(estimator)}"
    batch = advantage_inputs(
        rows,
        old_logprobs=old_logprobs if Need.OLD_LOGPROBS in needs else None,
        ref_logprobs=ref_logprobs if Need.REFERENCE in needs else None,
        entropies=engine_entropies(rows) if Need.ENTROPY in needs else None,
        values=values if Need.VALUES in needs else None,
        greedy_rewards=greedy_rewards if Need.GREEDY_ROLLOUT in needs else None,
    )
    if Need.ENTROPY in needs and batch.entropies is None:
        raise PluginError(f"{name} needs entropies, and the engine reported none for this step")
    with torch.no_grad(), unchanged(batch, name):
        output = _call(estimator, batch, name)
    problem = advantage_problem(output, batch)
    if problem is not None:
        raise PluginError(f"{name}: {problem}{defined_at(estimator)}")
    return output


def _call(estimator: AdvantageEstimator, batch: AdvantageInputs, name: str) -> AdvantageOutput:
    try:
        return estimator(batch)
    except ConfigError as error:
        raise named(error, name, "advantage") from error
    except RametError:
        raise
    except Exception as error:
        raise failed(error, name) from error
