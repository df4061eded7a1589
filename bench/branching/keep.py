"""Keep the numbers of `ramet bench branching` in bench/results, and its page's table in docs/leaderboard.md.

    python bench/branching/keep.py FOLDER

FOLDER is the command's `--work`, whose runs are finished.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import write_results

PAGE = Path(__file__).resolve().parents[2] / "docs/leaderboard.md"
BOARD = re.compile(r"(?<=<!-- board -->\n).*?(?=<!-- end of the board -->)", re.DOTALL)


def main() -> None:
    work = Path(sys.argv[1])
    stored = json.loads((work / "leaderboard.json").read_text(encoding="utf-8"))
    settings = {name: value for name, value in stored.items() if name != "runs"}
    print(f"raw numbers in {write_results('branching_leaderboard', settings, stored['runs'], {})}")
    board = (work / "leaderboard.md").read_text(encoding="utf-8")
    for plot in re.findall(r"\]\((\w+\.png)\)", board):
        shutil.copy(work / plot, PAGE.with_name(f"leaderboard_{plot}"))
        board = board.replace(f"]({plot})", f"](leaderboard_{plot})")
    page = PAGE.read_text(encoding="utf-8")
    tables = board.replace("## ", "### ")
    PAGE.write_text(BOARD.sub(lambda _: f"\n{tables}\n", page), encoding="utf-8")


if __name__ == "__main__":
    main()
