"""The layer between a case and our code. An adapter arranges inputs and calls; it computes nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from golden_cases import Case


def _always(case: Case) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How one function of the reference is asked of ours."""

    run: Callable[[Any], Any]  # the case's input -> what ours gives, as JSON would hold it
    covers: Callable[[Case], bool] = _always  # False: this case counts as not implemented
    leaves_out: Mapping[str, str] | None = None  # parts of the output that ours does not have -> why
    inside_mask: frozenset[str] = frozenset()  # parts of the output that the release fills outside `response_mask` too
    mask: str | None = None  # the mask outside of which the release fills an output that has no parts

    def expected(self, case: Case) -> Any:
        if self.mask is not None:
            return _inside(case.output, case.input[self.mask])
        if not isinstance(case.output, dict):
            return case.output
        kept = {key: value for key, value in case.output.items() if key not in (self.leaves_out or {})}
        mask = case.input.get("response_mask")
        return {key: _inside(value, mask) if key in self.inside_mask else value for key, value in kept.items()}


def _inside(rows: Any, mask: Any) -> Any:
    """0 outside the mask, where ours must be."""
    return [[v if m else 0.0 for v, m in zip(*pair, strict=True)] for pair in zip(rows, mask, strict=True)]
