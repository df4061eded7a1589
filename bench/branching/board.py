"""Write the tables of docs/leaderboard.md from stored numbers.

    python bench/branching/board.py [--page docs/leaderboard.md]

The numbers are those of the second experiment, bench/results/branching_equal_calls.json, which ran with the code of
`ramet bench branching`. `aepo` is left out, since it had an estimator and a loss of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS

from ramet_benchmarks.branching.compare import by_arm
from ramet_benchmarks.branching.leaderboard import against_chance, board, markdown

PAGE = Path(__file__).resolve().parents[2] / "docs/leaderboard.md"
TABLES = re.compile(r"(?<=<!-- board -->\n).*?(?=<!-- end of the board -->)", re.DOTALL)
NAMES = {"shuffled": "arpo_shuffled"}  # what the command names the arm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=PAGE)
    page = parser.parse_args().page
    runs = json.loads((RESULTS / "branching_equal_calls.json").read_text(encoding="utf-8"))["runs"]
    parts = []
    for kind in ("hops", "sums"):
        arms = {NAMES.get(name, name): found for name, found in by_arm(runs, kind).items() if name != "aepo"}
        parts += [f"`{kind}`:", markdown(board(arms)), markdown(against_chance(arms))]
    tables = "\n".join(f"\n{part}\n" for part in parts)
    page.write_text(TABLES.sub(lambda _: f"{tables}\n", page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
