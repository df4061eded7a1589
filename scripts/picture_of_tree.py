"""Draws docs/pictures/report_tree.png: a group of the demo's recording as the report shows it, by a headless Chromium.

.venv/bin/python scripts/picture_of_tree.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ramet.report.html import write_report

ROOT = Path(__file__).resolve().parents[1]
RECORDING = ROOT / "core/src/ramet/demo/quickstart_smollm2"
OUT = ROOT / "docs/pictures/report_tree.png"
GROUP = "#s4/g0"  # a fork after which the rollout goes wrong, where its parent goes right
SIZE = "1000,940"
MAX_BYTES = 150_000


def main() -> int:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("error: no chromium or google-chrome on PATH", file=sys.stderr)
        return 1
    OUT.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(RECORDING, Path(folder) / "report.html")
        flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=4000".split()
        flags += [f"--window-size={SIZE}", f"--user-data-dir={folder}/profile", f"--screenshot={OUT}"]
        subprocess.run([browser, *flags, page.as_uri() + GROUP], check=True, capture_output=True, timeout=60)
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")
    return int(OUT.stat().st_size > MAX_BYTES)


if __name__ == "__main__":
    sys.exit(main())
