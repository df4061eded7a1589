"""bench/distill compares within seeds, by one rule for all arms; its arms differ in what the page says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`bench/distill/run.py`, with the paths that it adds removed afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("bench_distill", ROOT / "bench/distill/run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored(arm: str, seed: int, valid: list[list[float]]) -> dict[str, Any]:
    return {"arm": arm, "seed": seed, "valid": valid}


def test_an_arm_is_compared_by_its_first_crossing_of_the_mean_of_rls_last_validations(bench: ModuleType) -> None:
    runs = [
        stored("rl", 1, [[0, 0.2], [100, 0.6], [200, 0.8], [300, 1.0], [400, 0.9]]),  # 0.9 after 250
        stored("rl", 2, [[0, 0.2], [100, 0.7], [200, 0.8], [300, 0.8], [400, 0.8]]),  # 0.8 after 200
        stored("distill", 1, [[0, 0.2], [20, 0.8], [40, 1.0], [60, 0.7]]),  # 0.9 after 30
        stored("distill", 2, [[0, 0.2], [20, 0.6], [40, 0.6], [60, 0.78]]),  # never; 0.76 after 57.8
    ]
    found = bench.compared(runs)
    assert found["distill"]["curve"] == {0: 0.2, 20: 0.7, 40: 0.8, 60: 0.74}
    assert found["rl"]["to_1.0"]["over_rl"]["seeds"] == {1: 1, 2: 1}
    assert found["distill"]["to_1.0"]["rollouts"] == {1: pytest.approx(30), 2: None}
    assert found["distill"]["to_1.0"]["over_rl"]["seeds"] == {1: 0.12}
    needed = found["distill"]["to_0.95"]["over_rl"]["seeds"]
    assert needed == pytest.approx({1: 25.5 / 227.5, 2: (40 + 20 * 0.16 / 0.18) / 160}, abs=1e-3)
    assert found["distill"]["accuracy"] == {1: 0.8333, 2: 0.66}


def test_the_interval_is_that_of_the_logarithms(bench: ModuleType) -> None:
    # Means and half of 1, 2 and 4: log 2 ± 4.303 log 2 / sqrt 3.
    found = bench.ratio({1: 10.0, 2: 40.0, 3: 80.0, 4: None}, {1: 10.0, 2: 20.0, 3: 20.0, 4: 20.0})
    ends = (2, 2 ** (1 - 4.3027 / 3**0.5), 2 ** (1 + 4.3027 / 3**0.5))
    assert (found["mean"], found["low"], found["high"]) == pytest.approx(ends, abs=1e-3)
    assert bench.ratio({1: None}, {1: 20.0}) == {"seeds": {}}
