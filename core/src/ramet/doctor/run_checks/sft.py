"""SFT: a loss that does not fall, a held-out loss that rises."""

from __future__ import annotations

from collections.abc import Iterator

from ramet.doctor import thresholds as t
from ramet.doctor.reading import finding, finite, thirds
from ramet.types import Finding, Severity, StoredRun


def loss_flat(run: StoredRun) -> Iterator[Finding]:
    values = finite(run, "sft/loss")
    if len(values) < t.FEWEST_LINES:
        return
    first, last = values[0], thirds(values)[1]
    if last > max(t.LOSS_LOW, (1.0 - t.LOSS_FALL) * first):
        yield finding(
            "loss-flat",
            Severity.PROBLEM,
            "the loss does not fall",
            f"sft/loss is {first:.3g} in the first line and {last:.3g} at the end, at sft.lr={run.option('sft.lr')}",
            "sft.lr (1e-5 for all weights, 1e-4 for LoRA); too high if the loss rises, too low if it stays",
        )


def overfit(run: StoredRun) -> Iterator[Finding]:
    values = finite(run, "sft/valid_loss")
    if len(values) > 1 and values[-1] >= (1.0 + t.VALID_LOSS_RISE) * min(values):
        yield finding(
            "overfit",
            Severity.WARNING,
            "the held-out loss rises",
            f"sft/valid_loss is {min(values):.3g} at its lowest and {values[-1]:.3g} at the end",
            "sft.epochs (fewer), sft.lr (lower), more varied rows",
        )
