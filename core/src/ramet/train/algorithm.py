"""From scored groups to advantages: what the estimator sees, and the check of what it returns."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ramet.errors import PluginError
from ramet.plugins import origin
from ramet.policy.batch import Floats, Row, advantage_inputs
from ramet.policy.untouched import left_alone
from ramet.types import AdvantageEstimator, AdvantageInputs, AdvantageOutput, Need


def estimate(
    estimator: AdvantageEstimator,
    rows: Sequence[Row],
    *,
    old_logprobs: Sequence[Floats],
    ref_logprobs: Sequence[Floats] | None = None,
    values: Sequence[Floats] | None = None,
    greedy_rewards: Sequence[float] | None = None,
) -> AdvantageOutput:
    """Advantages `[N, T]` of these rows. Raises `PluginError` if the estimator breaks the contract."""
    batch = advantage_inputs(
        rows, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs, values=values, greedy_rewards=greedy_rewards
    )
    name = origin(estimator)
    if Need.ENTROPY in estimator.needs and batch.entropies is None:
        raise PluginError(f"{name} needs entropies, and the engine reported none for this step")
    with torch.no_grad(), left_alone(batch, f"advantage estimator {name}"):
        output = estimator(batch)
    _check(output, batch, name)
    return output


def _check(output: AdvantageOutput, batch: AdvantageInputs, name: str) -> None:
    advantages = output.advantages
    if advantages.shape != batch.mask.shape:
        raise PluginError(
            f"advantage estimator {name} returned shape {tuple(advantages.shape)}, expected {tuple(batch.mask.shape)}"
        )
    if not torch.isfinite(advantages).all():
        raise PluginError(f"advantage estimator {name} returned advantages that are not finite")
    if advantages[~batch.mask].count_nonzero():
        raise PluginError(f"advantage estimator {name} returned advantages outside the mask")
