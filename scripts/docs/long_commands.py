"""`make docs-test`: run the documents' commands that take minutes, and record when and at which commit they ran.

Pages share one folder, the quickstart's first, whose runs others look at. Nothing is recorded if a command fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from blocks import ROOT, Block, blocks, pages, run_blocks

RECORD = ROOT / "docs" / "docs_test.json"
FIRST = ("quickstart.md", "running.md")


def main() -> int:
    """Return the exit code: 1 if a command failed or printed something else than its page shows."""
    by_page = {page: [block for block in blocks(page) if block.mark == "docs-test"] for page in pages()}
    marked = sorted((page for page in by_page if by_page[page]), key=_order)
    recorded, failed = {}, False
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        for page in marked:
            started = time.monotonic()
            for block, problem in run_blocks(by_page[page], "docs-test", work):
                print(f"{block.where}: {'FAILED' if problem else 'ok'}", flush=True)
                if problem:
                    failed = True
                    print(problem, flush=True)
            recorded[page.relative_to(ROOT).as_posix()] = _entry(by_page[page], time.monotonic() - started)
    if not failed:
        head = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": _commit()}
        RECORD.write_text(json.dumps(head | {"pages": recorded}, indent=1) + "\n", encoding="utf-8")
    return int(failed)


def _order(page: Path) -> tuple[int, str]:
    return (FIRST.index(page.name) if page.name in FIRST else len(FIRST), page.name)


def _entry(listed: list[Block], seconds: float) -> dict[str, object]:
    commands = [command for block in listed for command, _ in block.commands()]
    return {"seconds": round(seconds), "commands": commands}


def _commit() -> str:
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
