"""`make docs-test`: run the documents' commands that take minutes, and record when and at which commit they ran.

Pages share one folder, the quickstart's first, whose runs others look at. A page is recorded when all its commands did
what it shows; the entry of a page that fails stays as it was.
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
    recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    names = {page.relative_to(ROOT).as_posix() for page in marked}
    recorded = {name: entry for name, entry in recorded.items() if name in names}
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        for page in marked:
            started, problems = time.monotonic(), 0
            for block, problem in run_blocks(by_page[page], "docs-test", work):
                print(f"{block.where}: {'FAILED' if problem else 'ok'}", problem, sep="\n", flush=True)
                problems += bool(problem)
            failed = failed or problems > 0
            if not problems:
                name = page.relative_to(ROOT).as_posix()
                recorded[name] = _entry(by_page[page], time.monotonic() - started)
                RECORD.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return int(failed)


def _order(page: Path) -> tuple[int, str]:
    return (FIRST.index(page.name) if page.name in FIRST else len(FIRST), page.name)


def _entry(listed: list[Block], seconds: float) -> dict[str, object]:
    commands = [command for block in listed for command, _ in block.commands()]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"time": now, "commit": _commit(), "seconds": round(seconds), "commands": commands}


def _commit() -> str:
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
