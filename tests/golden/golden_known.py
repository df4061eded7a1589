"""Where ours differs from the release on purpose, and what ours gives there instead.

A case that is listed here must give exactly that: the checker fails if it agrees with the release, and if it gives a
third thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from golden_cases import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDifference:
    function: str
    applies: Callable[[Mapping[str, Any]], bool]  # of a case's input
    ours: Callable[[Case], Any]  # the output instead of the release's
    why: str


def _at_the_dual_clip(given: Mapping[str, Any]) -> bool:
    return bool(given["advantage"] < 0 and given["ratio"] == given["clip_ratio_c"])


def _unclipped_gradient(case: Case) -> dict[str, Any]:
    """That of -A r by log p, which is -A r. Everything else agrees."""
    return {**case.output, "grad_log_prob": [[-case.input["advantage"] * case.input["ratio"]]]}


def _mean_of_a_masked_row(given: Mapping[str, Any]) -> bool:
    return given["mode"] == "seq-mean-token-mean" and not all(any(row) for row in given["loss_mask"])


def _mean_with_empty_rows_as_0(case: Case) -> float:
    pairs = zip(case.input["loss_mat"], case.input["loss_mask"], strict=True)
    means = [sum(v for v, m in zip(*pair, strict=True) if m) / max(sum(map(bool, pair[1])), 1) for pair in pairs]
    return float(sum(means) / len(means))


KNOWN = (
    KnownDifference(
        function="policy_loss_scalar",
        applies=_at_the_dual_clip,
        ours=_unclipped_gradient,
        why="a tie between -A r and its dual clip: ours takes the gradient of the first, the release half of each",
    ),
    KnownDifference(
        function="agg_loss",
        applies=_mean_of_a_masked_row,
        ours=_mean_with_empty_rows_as_0,
        why="a row without a trained token: its mean is 0 here and 0/0 in the release",
    ),
)


def known_difference(case: Case) -> KnownDifference | None:
    return next((one for one in KNOWN if one.function == case.function and one.applies(case.input)), None)
