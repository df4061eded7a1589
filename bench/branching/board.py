"""Write the tables of docs/leaderboard.md from stored numbers.

    python bench/branching/board.py [--page docs/leaderboard.md]

The numbers are those of the second experiment, bench/results/branching_equal_calls.json, which ran with the code of
`ramet bench branching`, and of that command, bench/results/branching_leaderboard.json. `aepo` is left out, since it had
an estimator and a loss of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS

from ramet_benchmarks.branching.compare import by_arm
from ramet_benchmarks.branching.leaderboard import against_chance, board, markdown

PAGE = Path(__file__).resolve().parents[2] / "docs/leaderboard.md"
BOARDS = {"board": "branching_equal_calls", "second board": "branching_leaderboard"}  # mark in the page -> its numbers
NAMES = {"shuffled": "arpo_shuffled"}  # what the command names the arm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=PAGE)
    page = parser.parse_args().page
    text = page.read_text(encoding="utf-8")
    for mark, name in BOARDS.items():
        start, end = f"<!-- {mark} -->\n", f"<!-- end of the {mark} -->"
        before, rest = text.split(start)
        text = f"{before}{start}{tables(name)}\n{end}{rest.split(end)[1]}"
    page.write_text(text, encoding="utf-8")


def tables(name: str) -> str:
    """Return the tables of each kind of task in these results."""
    runs = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["runs"]
    parts = []
    for kind in sorted({run["kind"] for run in runs}):
        arms = {NAMES.get(arm, arm): found for arm, found in by_arm(runs, kind).items() if arm != "aepo"}
        parts += [f"`{kind}`:", markdown(board(arms)), markdown(against_chance(arms))]
    return "\n".join(f"\n{part}\n" for part in parts)


if __name__ == "__main__":
    main()
