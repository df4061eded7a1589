"""Options that several components share (a judge, a server): a list shows them once and refers to them afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ramet.cli.help_data import KeyHelp


class RepeatedKeys:
    """The options that a list has shown: the same field with the same default is one."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], list[str]] = {}  # (field, default) -> prefixes of keys

    def split(self, keys: Iterable[KeyHelp]) -> tuple[list[KeyHelp], dict[tuple[str, str], int]]:
        """Return the keys that are new, and (prefix here, prefix there) -> the number of options that both have."""
        blocks = dict[str, list[KeyHelp]]()
        for key in keys:
            blocks.setdefault(_prefix(key), []).append(key)
        new, shared = list[KeyHelp](), dict[tuple[str, str], int]()
        for here, block in blocks.items():
            outer = next(((a, b) for a, b in shared if here.startswith(f"{a}.")), ("", ""))
            there = self._most_like(block, here.replace(*outer, 1) if outer[0] else "")
            repeated = [key for key in block if there in self._before.get((key.source, key.default), ())]
            new += [key for key in block if key not in repeated]
            if repeated:
                pair = outer if outer[0] and here.replace(*outer, 1) == there else (here, there)
                shared[pair] = shared.get(pair, 0) + len(repeated)
        for here, block in blocks.items():
            for key in block:
                self._before.setdefault((key.source, key.default), []).append(here)
        return new, shared

    def _most_like(self, block: Sequence[KeyHelp], preferred: str) -> str:
        """Return the prefix that has the most options of a block, `preferred` among equals; empty if none has any."""
        counts = Counter(there for key in block for there in self._before.get((key.source, key.default), ()))
        most = max(counts.values(), default=0)
        return preferred if most and counts[preferred] == most else next((p for p in counts if counts[p] == most), "")


def _prefix(key: KeyHelp) -> str:
    return key.key.rpartition(".")[0]
