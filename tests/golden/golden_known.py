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


FAILING_OR_SILENT = (
    "x = 5", "import sys; sys.exit(3)", "raise ValueError('bad')", "  print(1)", "print(1\n", "while True: pass",
    "input()", "print()", "", "# only comment", "sympy", "await x", "f(print(3))",
)  # fmt: skip


def _says_why(case: Case) -> str:
    """What ours shows of a program that printed nothing, failed or was stopped."""
    code, said = case.input["code"], str(case.output)
    if not said:
        return "[the program ended with exit code 3]" if "sys.exit(3)" in code else "(no output)"
    if not said.startswith(("Traceback", "File ")):
        return "[stopped: the time limit was reached]"
    said = said.replace("<string>", "<python>")
    if said.startswith("File "):
        return f"  {said}"
    first, place, error = said.split("\n")
    marks = ["     ^"] if code == "f(print(3))" else []  # Python's own, where the failing part is less than the line
    return "\n".join([first, place, f"    {code}", *marks, error])


KNOWN = (
    KnownDifference(
        function="python_tool.execute",
        applies=lambda given: given["code"] in FAILING_OR_SILENT,
        ours=_says_why,
        why="the release is silent on an exit and on no output, shows no line of the program, and tells time-outs in "
        "Chinese",
    ),
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
