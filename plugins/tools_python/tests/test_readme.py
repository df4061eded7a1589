"""The example of the README runs as it is, without torch."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from ramet_tools_python import PythonConfig

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_example_runs_and_needs_no_torch() -> None:
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    program = f"{example}\nimport sys\nassert not {{'torch', 'transformers', 'ray'}} & set(sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    level, factorials, failed = done.stdout.splitlines()
    assert re.match(r"isolation level [0-3] \(", level)
    assert factorials == "['6', '24', '120']"
    assert level.startswith("isolation level 0") or re.match(r"error (Permission|FileNotFound)Error: ", failed)


def test_the_table_lists_every_option_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]*?)`? \|", README, re.MULTILINE))
    rows |= {"max_stdout_kb": "64", "max_stderr_kb": "16"}  # share a row
    defaults = PythonConfig()
    shown = {one.name: getattr(defaults, one.name) for one in fields(PythonConfig)}
    assert {name: "null" if value is None else str(value) for name, value in shown.items()} == {
        name: rows[name] for name in shown
    }
