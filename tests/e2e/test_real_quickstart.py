"""The quickstart's way for any model folder, with one that is small and random: what it writes, and its proof."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.models.tiny import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
KEYS = (
    "run.threads=1",
    "data.max_prompt_tokens=300",  # a byte each
    "rollout.max_response_tokens=48",
    "sft.max_tokens=600",
    "sft.lr=1e-3",
)


def quickstart(environment: dict[str, str], root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/quickstart"), "--model", "tiny", "--seed", "3", "--problems", "2"]
    return subprocess.run(
        [*command, *words, *KEYS], cwd=root, env=environment, capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def root(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("real")
    make_tiny_model(root / "tiny", hidden=32, layers=2, heads=2, intermediate=64)
    done = quickstart(environment, root, "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert "RL - SFT" in done.stdout
    assert "ramet play experiment=quickstart_smollm2 model.path=runs/quickstart_tiny-inputs/exported" in done.stdout
    return root


def test_it_goes_the_whole_way_with_any_model_folder(root: Path) -> None:
    run, inputs = root / "runs/quickstart_tiny", root / "runs/quickstart_tiny-inputs"
    summary = json.loads((run / "summary.json").read_text())
    losses = summary["losses"]
    assert losses.index(min(losses)) >= len(losses) - 2  # it stops after the first that is not lower
    assert [len(one["accuracy"]) for one in summary["after_rl"].values()] == [2, 2]
    assert summary["rl_minus_sft"]["held out"]["n_tasks"] == 2
    assert {"sft", "measure_before", "rl", "measure_after"} <= summary["seconds_by_phase"].keys()
    for path in (run / "curves.png", run / "report.html", inputs / "exported/model.safetensors", inputs / "sft/model"):
        assert path.exists(), path
    assert sorted(path.name for path in inputs.iterdir() if path.name.startswith("sft-")) == []


def test_the_proof_measures_the_same_run(environment: dict[str, str], root: Path) -> None:
    done = quickstart(environment, root, "--proof")
    assert done.returncode == 1, done.stderr  # a random model learns nothing
    assert "not reached: the interval of RL - SFT contains 0" in done.stderr
    proof = json.loads((root / "runs/quickstart_tiny/proof.json").read_text())
    assert proof["measured"]["after RL, without the tool"]["calls"] == 0
    before = json.loads((root / "runs/quickstart_tiny/summary.json").read_text())["seconds_by_phase"]["rl"]
    assert proof["seconds_by_phase"]["continued_sft"] >= before
    assert proof["differences"].keys() == {"RL - SFT", "RL - SFT continued", "other forms, RL - SFT"}
