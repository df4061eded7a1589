"""bench/walk: one rank of 64 holds what the plan says, with four of the 64 blocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_a_rank_of_a_shorter_32b_holds_and_saves_what_the_plan_says() -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "bench/walk/run.py", "--blocks", "4"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    walked = json.loads(done.stdout.splitlines()[-1])
    assert walked["peak"] == pytest.approx(walked["planned_peak"], rel=0.1)
    assert walked["held"] == walked["planned"] and walked["checkpoint"] == walked["planned_checkpoint"]
    assert walked["weights"] == 2 * walked["engine_weights"] == walked["checkpoint"] // 6
    assert walked["passes"] == 3 and walked["chunks"] > 1
