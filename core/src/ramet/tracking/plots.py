"""Curves as one PNG of small multiples, for a README or a terminal user. The report draws its own."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.io.os_errors import naming

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[list[float], list[float]]
INK, GRID, LINE = "#24292f", "#d8dee4", "#2f6fde"
SMOOTHED_FROM = 60  # points; longer curves also get a running mean


def plot_curves(path: Path, curves: Mapping[str, Curve], *, title: str, x: str) -> None:
    """Write one PNG with a panel per curve: name -> (x values, y values). Non-finite points are left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, max(1, len(curves)))
    rows = max(1, math.ceil(len(curves) / columns))
    figure = Figure(figsize=(4.2 * columns, 2.6 * rows + 0.6), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for index, (panel, (name, curve)) in enumerate(zip(panels, curves.items(), strict=False)):
        _draw(panel, name, curve, x if index >= len(curves) - columns else "")
    for panel in panels[len(curves) :]:
        panel.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        figure.savefig(path)


def _draw(panel: Axes, name: str, curve: Curve, x: str) -> None:
    points = [(a, b) for a, b in zip(*curve, strict=True) if math.isfinite(a) and math.isfinite(b)]
    xs, ys = [a for a, _ in points], [b for _, b in points]
    smooth = len(points) >= SMOOTHED_FROM
    panel.plot(xs, ys, color=LINE, linewidth=1.0 if smooth else 1.8, alpha=0.35 if smooth else 1.0, zorder=2)
    if smooth:
        panel.plot(xs, _running_mean(ys, max(3, len(ys) // 25)), color=LINE, linewidth=2.0, zorder=3)
    elif len(points) <= 12:
        panel.plot(xs, ys, "o", color=LINE, markersize=4, zorder=3)
    panel.set_title("\n".join(textwrap.wrap(name, 44)), fontsize=9.5, color=INK, loc="left")
    panel.set_xlabel(x, fontsize=9, color=INK)
    panel.grid(True, axis="y", color=GRID, linewidth=0.7, zorder=0)
    panel.margins(x=0.03, y=0.12)
    panel.tick_params(labelsize=8, colors=INK, length=0)
    panel.locator_params(axis="y", nbins=5)
    panel.locator_params(axis="x", nbins=5, integer=all(a.is_integer() for a in map(float, xs)))
    panel.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4), useOffset=False)
    panel.yaxis.get_offset_text().set_fontsize(8)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(GRID)
    if len(points) < 2:
        panel.set_xticks(xs)
    if not points:
        panel.set_yticks([])
        panel.text(0.5, 0.5, "no finite values", ha="center", va="center", transform=panel.transAxes, color=INK)


def _running_mean(values: list[float], half: int) -> list[float]:
    """Centred; at both ends the window is cut."""
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
