from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
from matplotlib.image import imread

from ramet.tracking.plots import plot_curves


def steps(n: int) -> list[float]:
    return [float(i + 1) for i in range(n)]


def test_a_png_grows_by_a_row_for_every_three_curves(tmp_path: Path) -> None:
    heights = []
    for n in (1, 3, 4):
        path = tmp_path / "new" / f"{n}.png"
        plot_curves(path, {f"metric {i}": (steps(20), steps(20)) for i in range(n)}, title="Run", x="step")
        heights.append(imread(path).shape[0])
    assert heights[0] == heights[1] < heights[2]


def test_curves_without_finite_points_and_single_points_are_drawn_without_warnings(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    curves = {
        "empty": ([], []),
        "one point": ([1.0], [2.0]),
        "no number": (steps(3), [math.nan] * 3),
        "gaps, tiny": (steps(80), [1e-7 * i if i % 3 else math.inf for i in range(80)]),
        "constant": (steps(5), [3.0] * 5),
    }
    plot_curves(tmp_path / "curves.png", curves, title="Run", x="step")
    assert imread(tmp_path / "curves.png").shape[2] in (3, 4)
    assert [str(warning.message) for warning in recwarn] == []


def test_no_curves_at_all_still_give_a_picture(tmp_path: Path) -> None:
    plot_curves(tmp_path / "none.png", {}, title="Run", x="step")
    assert (tmp_path / "none.png").stat().st_size > 0
