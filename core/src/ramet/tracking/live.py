"""The live line: what a job is doing now, at the bottom of a terminal. Pipes and files never see a byte of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from ramet.io.json_values import visible
from ramet.io.terminal_line import TerminalLine, is_live

PERIOD_S = 0.25  # between two drawings
GAP = "  "
DIM, RESET = "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the line. Where a terminal is too narrow, pieces of higher `rank` are left out first."""

    text: str
    rank: int = 0


def line_of(parts: Sequence[Part], width: int) -> str:
    """The parts that fit into fewer than `width` characters, in their order; of one that does not, the beginning."""
    kept = [part for part in parts if part.text]
    while len(kept) > 1 and cell_len(_joined(kept)) >= width:
        kept.remove(max(reversed(kept), key=lambda part: part.rank))
    text = _joined(kept)
    return text if cell_len(text) < width else set_cell_size(text, max(0, width - 1)).rstrip()


def _joined(parts: Sequence[Part]) -> str:
    return GAP.join(visible(part.text).replace("\n", " ") for part in parts)


@contextlib.contextmanager
def live_line(parts: Callable[[], Sequence[Part]]) -> Iterator[None]:
    """Draw what `parts` returns about four times a second, if stdout is a terminal. Another thread calls it."""
    if not is_live(sys.stdout):
        yield
        return
    line, stop = TerminalLine(), threading.Event()
    before, after = ("", "") if os.environ.get("NO_COLOR") else (DIM, RESET)

    def draw() -> None:
        while not stop.wait(PERIOD_S):
            if text := line_of(parts(), shutil.get_terminal_size().columns):
                line.draw(f"{before}{text}{after}")
            else:
                line.erase()

    drawing = threading.Thread(target=draw, name="ramet-live-line", daemon=True)
    with line.held():
        drawing.start()
        try:
            yield
        finally:
            stop.set()
            drawing.join(2 * PERIOD_S)
