"""`ramet plugins`: what is installed, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from ramet.plugins import PluginInfo

HEADER = ("NAME", "DISTRIBUTION", "VERSION", "CONTRACT", "OFFERS")


def as_json(infos: Sequence[PluginInfo]) -> str:
    return json.dumps([asdict(info) for info in infos], indent=2)


def as_table(infos: Sequence[PluginInfo]) -> str:
    rows = [HEADER, *(_row(info) for info in infos)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )


def _row(info: PluginInfo) -> tuple[str, ...]:
    offers = "; ".join(f"{group}: {', '.join(names)}" for group, names in info.offers.items())
    state = offers or "nothing" if info.broken is None else "BROKEN " + " ".join(info.broken.split())
    return info.name, info.distribution, info.version or "-", info.contract or "-", state
