"""The comparison for people: one table, the worst token with the text around it, the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ramet.check.agreement import Agreement, Spread, Threshold, Token, Weights
from ramet.io.json_values import visible_lines
from ramet.models.encoder import Encoder
from ramet.policy.batching.rows import Row

AROUND = 16  # tokens of text on each side of the worst one


def agreement_table(agreement: Agreement, *, engine: str) -> Table:
    title = f"engine {engine} and trainer: {agreement.tokens} sampled tokens of {agreement.rollouts} rollouts"
    table = Table(title=title)
    for column in ("absolute difference, nats", "mean", "99th percentile", "largest"):
        table.add_column(column)
    table.add_row("log-probability", *_numbers(agreement.logprobs))
    table.add_row("entropy", *_numbers(agreement.entropies))
    return table


def describe_weights(weights: Weights, tis_cap: float | None) -> str:
    """What the differences mean for truncated importance sampling."""
    cap = "off" if tis_cap is None else f"{tis_cap:g}, truncates {weights.truncated:.2%}"
    return (
        f"importance weights {weights.least:.6f} to {weights.largest:.6f}, mean {weights.mean:.6f}, "
        f"effective sample {weights.effective:.2%} (both truncated); train.tis_cap {cap}"
    )


def _numbers(spread: Spread | None) -> tuple[str, ...]:
    return ("-",) * 3 if spread is None else tuple(f"{one:.3g}" for one in (spread.mean, spread.p99, spread.largest))


def describe_token(token: Token, rows: Sequence[Row], encoder: Encoder) -> str:
    """Where the token stands, what both sides say of it, and the text around it with the token in » «."""
    row, at = rows[token.row], token.position
    ids = [*row.prompt_ids.tolist(), *row.response_ids.tolist()]
    here = len(row.prompt_ids) + at
    before, one, after = (
        " ".join(visible_lines(encoder.decode(part)))
        for part in (ids[max(0, here - AROUND) : here], ids[here : here + 1], ids[here + 1 : here + 1 + AROUND])
    )
    return (
        f"worst token: task {row.task_id}, rollout {row.rollout_id}, turn {row.turn_ids[at]}, position {at} of the "
        f"response: engine {token.engine:.6f}, trainer {token.trainer:.6f}\n  {before}»{one}«{after}"
    )


def verdict(agreement: Agreement, threshold: Threshold) -> str:
    what = f"{threshold.statistic} difference of log-probabilities"
    if agreement.entropies is not None:
        what += " and of entropies"
    if agreement.exceeds(threshold):
        return f"THEY DISAGREE: the {what} must be at most {threshold.value:g} nats"
    return f"they agree: the {what} is at most {threshold.value:g} nats"
