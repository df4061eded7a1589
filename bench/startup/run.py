"""How long a user waits for the first sign of life: `import ramet`, `ramet --help`, `ramet plugins`.

    python bench/startup/run.py [--repeats 15]

Each is a fresh process, compared with a Python process that does nothing; they take turns, and the first round is not
counted.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import print_table, shown, spread, write_results

GOAL_S = 0.5
RAMET = [sys.executable, "-c", "import sys; from ramet.cli import main; sys.exit(main())"]
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import ramet": [sys.executable, "-c", "import ramet"],
    "ramet --help": [*RAMET, "--help"],
    "ramet plugins": [*RAMET, "plugins"],
}


def time_of(command: list[str]) -> dict[str, float]:
    """Wall and CPU seconds of one process. Raises if it fails."""
    load = os.getloadavg()[0]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "load": load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    runs: list[dict[str, Any]] = []
    for repeat in range(repeats + 1):
        for name, command in COMMANDS.items():
            numbers = time_of(command)
            if repeat:
                runs.append({"command": name, "round": repeat, **numbers})
    rows, summary = [], {}
    for name in COMMANDS:
        own = [r for r in runs if r["command"] == name]
        walls, cpus = [r["wall_s"] for r in own], [r["cpu_s"] for r in own]
        summary[name] = {"wall_s": spread(walls), "cpu_s": spread(cpus)}
        rows.append([name, shown(walls), shown(cpus)])
    print_table(("command", "wall s", "CPU s"), rows)
    path = write_results("startup", {"repeats": repeats, "goal_s": GOAL_S}, runs, summary)
    print(f"\nraw numbers: {path.name}")


if __name__ == "__main__":
    main()
