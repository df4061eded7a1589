"""What every bench needs: which machine this is, how a run is timed, and one JSON file with all raw numbers.

Wall time and CPU time are kept side by side: on a shared machine only the second shows what a program costs.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
RESULTS = BENCH / "results"
PACKAGES = ("ramet", "torch", "transformers", "tokenizers")


@dataclass(slots=True)
class Measured:
    """One timed run of this process. `load`: of the machine over the last minute, when the run began."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    load: float = 0.0


@contextmanager
def measured() -> Iterator[Measured]:
    """Time a block. Garbage of earlier runs is collected before, and not during it."""
    gc.collect()
    gc.disable()
    one = Measured(load=os.getloadavg()[0])
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        yield one
    finally:
        one.wall_s, one.cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        gc.enable()


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def shown(values: Sequence[float], digits: int = 3) -> str:
    """Median with its range."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def write_results(
    name: str,
    settings: dict[str, Any],
    runs: list[dict[str, Any]],
    summary: dict[str, Any],
    made_by: str | None = None,
    folder: Path | None = None,
) -> Path:
    """Replace `results/NAME.json`. `runs` are the raw numbers in the order in which they were measured, one a line.

    `made_by`: the commit that they were measured with, where that was another than this. `folder`: where else
    the file is to be.
    """
    folder = folder or RESULTS
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    content = {
        "bench": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": made_by or commit(),
        "machine": machine(),
        "settings": settings,
        "summary": summary,
    }
    lines = ",\n".join(f"  {json.dumps(run)}" for run in runs)
    body = json.dumps(content, indent=1).removesuffix("\n}")
    path.write_text(f'{body},\n "runs": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    return path


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(table_text(head, rows))


def table_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = (head, ["-" * width for width in widths], *rows)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines
    )


def make_inputs(work: Path) -> None:
    """What a short training of a tiny model needs: `model/` and 200 tasks in `tasks.jsonl`."""
    from ramet.models.tiny import make_tiny_model  # torch, which not every bench has

    make_tiny_model(work / "model", hidden=128, layers=4)
    rows = [{"prompt": f"task {i}", "answer": "x"} for i in range(200)]
    (work / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit that was measured, with a plus sign if the tree had changes."""
    git = ["git", "-C", str(BENCH)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
