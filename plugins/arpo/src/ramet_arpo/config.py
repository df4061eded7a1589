"""Options of ARPO."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class ArpoConfig:
    """See `branching`."""
