"""Plots of stored runs: curves over costs, and metrics over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ramet_benchmarks.branching.compare import COSTS, Run, on_grid

CONTROL = "none"
INK, GRID, GREY = "#24292f", "#d8dee4", "#8c959f"
COLOURS = ("#2f6fde", "#d1242f", "#cf5f9a", "#1a7f37", "#bf8700", "#8250df", "#bc4c00")
Arms = Mapping[str, Mapping[int, Run]]


def plot_curves(path: Path, arms: Arms, control: str, title: str) -> None:
    """Draw a column per arm, next to the control in grey, and a row per cost; bands are 95 % intervals."""
    others = [arm for arm in arms if arm != control]
    figure, panels = _figure(len(COSTS), len(others), title)
    for row, (cost, line) in enumerate(zip(COSTS, panels, strict=True)):
        for arm, panel, colour in zip(others, line, cycle(COLOURS), strict=False):
            _curve(panel, list(arms[control].values()), cost, GREY, control)
            _curve(panel, list(arms[arm].values()), cost, colour, arm)
            panel.set_ylim(0, 1)
            panel.set_xlabel(cost, fontsize=8.5, color=INK)
            if row == 0:
                panel.set_title(arm, fontsize=10, color=colour, loc="left", fontweight="bold")
        line[0].set_ylabel("sampled accuracy", fontsize=8.5, color=INK)
    figure.savefig(path)


def plot_steps(path: Path, arms: Arms, metrics: Mapping[str, str], title: str) -> None:
    """Draw a panel per metric (name -> label) with a line per arm: means over the seeds, step by step."""
    figure, panels = _figure(1, len(metrics), title, width=4.2, height=3.0)
    for panel, (metric, label) in zip(panels[0], metrics.items(), strict=True):
        for arm, colour in zip(arms, chain([GREY], cycle(COLOURS)), strict=False):
            _steps(panel, list(arms[arm].values()), metric, colour, arm)
        panel.set_title(label, fontsize=9.5, color=INK, loc="left")
        panel.set_xlabel("step", fontsize=8.5, color=INK)
        panel.set_ylim(0, 1.05 * panel.get_ylim()[1])
    panels[0][-1].legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path)


def _figure(
    rows: int, columns: int, title: str, width: float = 2.3, height: float = 2.0
) -> tuple[Figure, list[list[Axes]]]:
    figure = Figure(
        figsize=(width * columns + 0.4, height * rows + 0.4), dpi=90, layout="constrained", facecolor="white"
    )
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11, color=INK)
    panels = [list(line) for line in figure.subplots(rows, columns, squeeze=False)]
    for panel in (one for line in panels for one in line):
        panel.grid(True, axis="y", color=GRID, linewidth=0.7, zorder=0)
        panel.tick_params(labelsize=7.5, colors=INK, length=0)
        panel.locator_params(axis="x", nbins=4)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
        panel.spines["bottom"].set_color(GRID)
    return figure, panels


def _curve(panel: Axes, runs: Sequence[Run], cost: str, colour: str, label: str) -> None:
    xs, band = on_grid(runs, cost)
    panel.plot(xs, [one.mean for one in band], color=colour, linewidth=1.8, label=label, zorder=3)
    low, high = [one.mean - one.half for one in band], [one.mean + one.half for one in band]
    panel.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0, zorder=2)


def _steps(panel: Axes, runs: Sequence[Run], metric: str, colour: str, label: str) -> None:
    columns = zip(*(run["per_step"].get(metric, ()) for run in runs), strict=False)
    means = [[value for value in column if value is not None] for column in columns]
    points = [(step, fmean(values)) for step, values in enumerate(means, start=1) if values]
    panel.plot([x for x, _ in points], [y for _, y in points], color=colour, linewidth=1.5, label=label, zorder=3)
