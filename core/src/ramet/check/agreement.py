"""How far the engine's log-probabilities (mu) and entropies are from the trainer's (pi_old), token by token.

Both sides hold the same weights, so every difference is numerical noise or a fault: another temperature, a tokenizer or
template that does not fit, a stale cache, weights that were not synced. The threshold is what separates the two:

- float32: 1e-3 on the *largest* difference. Two correct implementations differ by rounding only, some 1e-5 nats; the
  faults above move some token by far more than 1e-3, and a fault may concern a single token (one after a tool result,
  say), so none is excused.
- bfloat16: 0.1 on the *99th percentile*. A number keeps 8 bits, so a logit around 16 is rounded in steps of 0.125 by
  each side on its own, and single tokens in the tail of the distribution differ by more without a fault. A wrong
  temperature or wrong weights move entire rollouts, hence more than one token in a hundred. Measured with tiny models
  on a CPU: 0.01 to 0.04 without a fault, 0.13 to 0.21 with a temperature of 0.9 for 1.0. A random model with
  unusually large logits reached 0.11 without a fault, and SmolLM2-135M after SFT 0.20; for those `--threshold` is
  there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ramet.config.schema import Dtype
from ramet.policy.batching.rows import Floats, Row

Numbers = NDArray[np.float64]


class Statistic(StrEnum):
    LARGEST = "largest"
    P99 = "99th percentile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The allowed difference in nats, and which difference is compared with it."""

    statistic: Statistic
    value: float


DEFAULTS = {
    Dtype.FLOAT32: Threshold(statistic=Statistic.LARGEST, value=1e-3),
    Dtype.BFLOAT16: Threshold(statistic=Statistic.P99, value=0.1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Absolute differences over all sampled tokens, in nats."""

    mean: float
    p99: float
    largest: float

    def exceeds(self, threshold: Threshold) -> bool:
        """Whether the difference is above the threshold, or not a number."""
        value = self.largest if threshold.statistic is Statistic.LARGEST else self.p99
        return not value <= threshold.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Importance weights pi_old / mu per token, as truncated importance sampling would use them."""

    mean: float  # after truncation
    least: float
    largest: float
    truncated: float  # share above train.tis_cap; 0 where the cap is off
    effective: float  # (sum w)^2 / (n sum w^2) after truncation: 1 if all are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The token with the largest difference of log-probabilities, and its position."""

    row: int
    position: int  # in the response
    engine: float
    trainer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    rollouts: int
    tokens: int  # sampled ones: only they are compared
    logprobs: Spread
    entropies: Spread | None  # None: the engine reports none
    weights: Weights
    worst: Token

    def exceeds(self, threshold: Threshold) -> bool:
        spreads = [self.logprobs] if self.entropies is None else [self.logprobs, self.entropies]
        return any(spread.exceeds(threshold) for spread in spreads)


def compare(
    rows: Sequence[Row], logprobs: Sequence[Floats], entropies: Sequence[Floats], *, tis_cap: float | None
) -> Agreement:
    """`logprobs` and `entropies` are the trainer's, one array per row; the engine's are in the rows.

    There is at least one sampled token.
    """
    engine = _sampled(rows, [row.engine_logprobs for row in rows])
    trainer = _sampled(rows, logprobs)
    engine_entropies = [row.entropies for row in rows if row.entropies is not None]
    return Agreement(
        rollouts=len(rows),
        tokens=len(engine),
        logprobs=_spread(trainer - engine),
        entropies=_spread(_sampled(rows, entropies) - _sampled(rows, engine_entropies))
        if len(engine_entropies) == len(rows)
        else None,
        weights=_weights(np.exp(trainer - engine), tis_cap),
        worst=_worst(rows, engine, trainer),
    )


def _sampled(rows: Sequence[Row], values: Sequence[Floats]) -> Numbers:
    return np.concatenate([per_token[row.mask] for row, per_token in zip(rows, values, strict=True)]).astype(np.float64)


def _spread(differences: Numbers) -> Spread:
    size = np.abs(differences)
    return Spread(mean=float(size.mean()), p99=float(np.quantile(size, 0.99)), largest=float(size.max()))


def _weights(weights: Numbers, cap: float | None) -> Weights:
    used = weights if cap is None else np.minimum(weights, cap)
    return Weights(
        mean=float(used.mean()),
        least=float(used.min()),
        largest=float(weights.max()),
        truncated=0.0 if cap is None else float((weights > cap).mean()),
        effective=float(used.sum() ** 2 / (len(used) * (used**2).sum())),
    )


def _worst(rows: Sequence[Row], engine: Numbers, trainer: Numbers) -> Token:
    index = int(np.abs(trainer - engine).argmax())  # the first that is not a number, if there is one
    positions = [(i, int(position)) for i, row in enumerate(rows) for position in np.flatnonzero(row.mask)]
    row, position = positions[index]
    return Token(row=row, position=position, engine=float(engine[index]), trainer=float(trainer[index]))
