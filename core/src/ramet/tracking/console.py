"""The console tracker: one row of key metrics per step.

Rows are printed and never redrawn, so that log lines, ssh and a killed process cannot garble them. On a terminal they
form a table with a progress bar; without one (or in CI) each step is one plain line of `name value` pairs.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from ramet.io.json_values import visible

HEADER_EVERY = 20  # rows of a table after which the header is repeated
BAR = 10


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def _small(value: float) -> str:
    return f"{value:.1e}" if value != 0 and abs(value) < 0.001 else f"{value:.3f}"


def _count(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 10000 else f"{value:.0f}"


def _seconds(value: float) -> str:
    if value < 90:
        return f"{value:.1f}s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes}m{seconds:02d}" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One key metric: the key it is read from, its heading and how it is written."""

    key: str
    title: str
    show: Callable[[float], str]
    width: int = 8
    per: str | None = None  # a metric in seconds that the value is divided by
    wide: bool = False  # only on terminals of at least `WIDE` columns

    def value(self, metrics: Mapping[str, float]) -> float | None:
        if self.key not in metrics or (self.per is not None and not metrics.get(self.per)):
            return None
        return metrics[self.key] / (metrics[self.per] if self.per is not None else 1.0)

    def cell(self, metrics: Mapping[str, float]) -> str | None:
        value = self.value(metrics)
        return None if value is None else self.show(value) if math.isfinite(value) else str(value)


COLUMNS = (
    Column(key="reward/mean", title="reward", show=_small),
    Column(key="rollout/tool_use", title="tool use", show=_percent),
    Column(key="rollout/masked_share", title="masked", show=_percent, width=6),
    Column(key="rollout/executed_sampled_tokens", per="rollout/seconds", title="tok/s", show=_count, width=6),
    Column(key="train/approx_kl", title="KL", show=_small, wide=True),
    Column(key="train/engine_gap_mean", title="logp gap", show=_small, wide=True),
    Column(key="train/entropy", title="entropy", show=_small, width=7),
    Column(key="time/step_s", title="time", show=_seconds, width=7),
)
WIDE = 100
MAIN = "reward/mean"  # a call without it is no step of RL (SFT, a first validation): all its metrics are printed
VALID = "valid/"  # metrics that get a line of their own


class ConsoleTracker:
    """Prints to `console`. `total_steps` gives the progress bar and the time left; 0: unknown."""

    def __init__(self, total_steps: int = 0, console: Console | None = None) -> None:
        self.total_steps = total_steps
        self.console = console or Console()
        self.table = self.console.is_terminal and not os.environ.get("CI")
        self._columns = [c for c in COLUMNS if not c.wide or self.console.width >= WIDE]
        self._rows = 0
        self._clock: tuple[float, int] | None = None  # when the first row was printed, and its step
        self._reward: float | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if MAIN not in metrics:
            self._print_pairs(step, metrics)
            return
        left = self._left(step)
        if self.table:
            self._print_row(step, metrics, left)
        else:
            cells = [f"{c.title} {cell}" for c in COLUMNS if (cell := c.cell(metrics)) is not None]
            end = [f"left {_seconds(left)}"] if left is not None else []
            self._print(Text("  ".join([self._progress(step), *cells, *end])))
        self._print_pairs(step, {name: value for name, value in metrics.items() if name.startswith(VALID)})

    def rewind(self, step: int) -> None:
        self._clock = None
        if step > 0:
            self._print(Text(f"resumed after step {step}"))

    def close(self) -> None:
        """Every row was printed in full."""

    def _print_row(self, step: int, metrics: Mapping[str, float], left: float | None) -> None:
        if self._rows % HEADER_EVERY == 0:
            titles = "  ".join(c.title.rjust(c.width) for c in self._columns)
            self._print(Text(f"{'step':<{self._stub_width}}  {titles}  {'left':>7}", style="bold"))
        self._rows += 1
        row = Text(self._stub(step), style="cyan")
        for column in self._columns:
            cell = column.cell(metrics) or "-"
            row.append("  ").append(cell.rjust(column.width), style=self._style(column, metrics))
        row.append("  ").append(("-" if left is None else _seconds(left)).rjust(7), style="dim")
        self._reward = metrics[MAIN]
        self._print(row)

    def _print_pairs(self, step: int, metrics: Mapping[str, float]) -> None:
        if metrics:
            pairs = [f"{visible(name)} {_small(value)}" for name, value in sorted(metrics.items())]
            self._print(Text("  ".join([self._progress(step), *pairs]), style="dim" if self.table else ""))

    def _style(self, column: Column, metrics: Mapping[str, float]) -> str:
        if column.key == MAIN and self._reward is not None:
            return "bold green" if metrics[MAIN] >= self._reward else "bold yellow"
        return "bold" if column.key == MAIN else "default"

    @property
    def _stub_width(self) -> int:
        digits = len(str(self.total_steps))
        return 2 * digits + 2 + BAR if self.total_steps else 8

    def _stub(self, step: int) -> str:
        if not self.total_steps:
            return str(step).ljust(self._stub_width)
        done = min(BAR, round(BAR * step / self.total_steps))
        digits = len(str(self.total_steps))
        full, empty = "━╌" if self.console.encoding.startswith("utf") else "#-"
        return f"{step:>{digits}}/{self.total_steps} {full * done}{empty * (BAR - done)}"

    def _progress(self, step: int) -> str:
        return f"step {step}/{self.total_steps}" if self.total_steps else f"step {step}"

    def _left(self, step: int) -> float | None:
        """Seconds to the last step at the mean pace since the first row of this process."""
        now = time.monotonic()
        if self._clock is None:
            self._clock = (now, step)
        start, first = self._clock
        if step <= first or not self.total_steps:
            return None
        return (now - start) / (step - first) * max(0, self.total_steps - step)

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True, highlight=False)
