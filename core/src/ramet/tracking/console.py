"""The console tracker: one row of key metrics per step.

Rows are printed and never redrawn, so that log lines, ssh and a killed process cannot garble them. On a terminal they
form a table with a progress bar; without one (or in CI) each step is one plain line of `name value` pairs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from ramet.io.json_values import visible
from ramet.tracking.columns import (
    GAP,
    Column,
    Layout,
    fitting,
    layout_of,
    seconds,
    small,
    source_columns,
    with_sources,
)

HEADER_EVERY = 20  # rows of a table after which the header is repeated
BAR = 10
LEFT_WIDTH = 6
VALID = "valid/"  # metrics that get a line of their own


class PipeConsole(Console):
    """Prints nothing more once its reader has left, as in `ramet compare A B | head -1`; rich ends the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its exit


class StepLines:
    """The lines of a step where there is no table: `name value` pairs. `total_steps` 0: unknown."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps
        self._clock: tuple[float, int] | None = None  # when the first step was reported, and which it was

    def restart(self) -> None:
        """Steps of another process have another pace."""
        self._clock = None

    def left(self, step: int) -> float | None:
        """Seconds to the last step at the mean pace since the first report of this process. Called once per step."""
        now = time.monotonic()
        if self._clock is None:
            self._clock = (now, step)
        start, first = self._clock
        if step <= first or not self.total_steps:
            return None
        return (now - start) / (step - first) * max(0, self.total_steps - step)

    def lines(self, step: int, metrics: Mapping[str, float], left: float | None) -> list[str]:
        """One for the step, one for its validation."""
        layout = layout_of(metrics)
        if layout is None:
            return self.pairs(step, metrics)
        columns = with_sources(layout.columns, source_columns(metrics))
        cells = [f"{visible(c.title)} {cell}" for c in columns if (cell := c.cell(metrics)) is not None]
        end = [f"left {seconds(left)}"] if left is not None else []
        return ["  ".join([self._progress(step), *cells, *end]), *self.pairs(step, validation(metrics))]

    def pairs(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """One line with all of these metrics; none without any."""
        pairs = [f"{visible(name)} {small(value)}" for name, value in sorted(metrics.items())]
        return ["  ".join([self._progress(step), *pairs])] if pairs else []

    def _progress(self, step: int) -> str:
        return f"step {step}/{self.total_steps}" if self.total_steps else f"step {step}"


class ConsoleTracker:
    """Prints to `console`. `total_steps` gives the progress bar and the time left; 0: unknown."""

    def __init__(self, total_steps: int = 0, console: Console | None = None) -> None:
        self.total_steps = total_steps
        self.console = console or PipeConsole()
        self.table = self.console.is_terminal and not os.environ.get("CI")
        self._lines = StepLines(total_steps)
        self._names: set[str] = set()  # of all metrics so far: a step may lack a data source
        self._columns: list[Column] = []  # of the last header
        self._rows = 0
        self._last: float | None = None  # the main metric of the step before

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        layout = layout_of(metrics)
        remaining_s = None if layout is None else self._lines.left(step)
        if not self.table:
            for line in self._lines.lines(step, metrics, remaining_s):
                self._print(Text(line))
            return
        if layout is not None:
            self._print_row(layout, step, metrics, remaining_s)
        for line in self._lines.pairs(step, metrics if layout is None else validation(metrics)):
            self._print(Text(line, style="dim"))

    def rewind(self, step: int) -> None:
        """Print nothing: the job that resumes logs it."""
        self._lines.restart()

    def close(self) -> None:
        """Do nothing: every row was printed in full."""

    def _print_row(self, layout: Layout, step: int, metrics: Mapping[str, float], remaining_s: float | None) -> None:
        self._names |= metrics.keys()
        columns = self._fitting(layout)
        if self._rows % HEADER_EVERY == 0 or columns != self._columns:
            self._rows, self._columns = 0, columns
            titles = "".join(" " * GAP + visible(c.title).rjust(c.width) for c in columns)
            width = self._number_width + (1 + BAR if self._has_bar else 0)
            self._print(Text(f"{'step':<{width}}{titles}{'left':>{GAP + LEFT_WIDTH}}", style="bold"))
        self._rows += 1
        row = Text(self._stub(step), style="cyan")
        for column in columns:
            cell = column.cell(metrics) or "-"
            row.append(" " * GAP).append(cell.rjust(column.width), style=self._style(layout, column, metrics))
        row.append(("-" if remaining_s is None else seconds(remaining_s)).rjust(GAP + LEFT_WIDTH), style="dim")
        self._last = metrics[layout.main]
        self._print(row)

    def _fitting(self, layout: Layout) -> list[Column]:
        columns = with_sources(layout.columns, source_columns(self._names))
        return fitting(columns, self.console.width - self._number_width - GAP - LEFT_WIDTH)

    def _style(self, layout: Layout, column: Column, metrics: Mapping[str, float]) -> str:
        if column.key != layout.main:
            return "default"
        if self._last is None:
            return "bold"
        change = metrics[layout.main] - self._last
        return "bold green" if (change >= 0 if layout.higher_is_better else change <= 0) else "bold yellow"

    @property
    def _number_width(self) -> int:
        return max(4, 2 * len(str(self.total_steps)) + 1) if self.total_steps else 8

    @property
    def _has_bar(self) -> bool:
        """Whether there is room for a bar in what the columns leave."""
        taken = self._number_width + sum(GAP + column.width for column in self._columns) + GAP + LEFT_WIDTH
        return bool(self.total_steps) and taken + 1 + BAR <= self.console.width

    def _stub(self, step: int) -> str:
        if not self.total_steps:
            return str(step).ljust(self._number_width)
        number = f"{step:>{len(str(self.total_steps))}}/{self.total_steps}".ljust(self._number_width)
        if not self._has_bar:
            return number
        done = min(BAR, round(BAR * step / self.total_steps))
        full, empty = "━╌" if self.console.encoding.startswith("utf") else "#-"
        return f"{number} {full * done}{empty * (BAR - done)}"

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True, highlight=False)


def validation(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith(VALID)}
