"""Words: docstrings, comments, messages and help are plain English, without the dialect of Ramet's first versions.

Texts that a model reads are not looked at here: they change only with the numbers of a run.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = re.compile(r"\b(?:goes on|go on|going on|whoever|nobody|anew|mends?|mended)\b")
INSTEAD = "continue(s); the caller, no caller; again; fix(es)"
PLUGINS = ("arpo", "aepo", "rewards", "tools_python", "benchmarks")
ROOMS = (
    "cli", "data", "models", "engines", "algorithms", "sft", "train", "report", "doctor", "scaffold", "planning",
    "tracking", "runs", "testing", "types", "io", "components", "export", "check", "play",
)  # fmt: skip
FORMER_NAME = "types/doctor.py"  # reads `mend` of earlier plugins


def findings(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [(number, FORBIDDEN.search(line)) for number, line in enumerate(lines, 1)]
    where = path.relative_to(ROOT).as_posix()
    return [f"{where}:{number}: {match[0]!r}" for number, match in found if match]


@pytest.mark.parametrize(
    "folder", [*(f"core/src/ramet/{room}" for room in ROOMS), *(f"plugins/{name}/src" for name in PLUGINS)]
)
def test_no_word_of_the_former_dialect_is_used(folder: str) -> None:
    files = [path for path in sorted((ROOT / folder).rglob("*.py")) if not path.as_posix().endswith(FORMER_NAME)]
    assert files, folder
    assert [finding for path in files for finding in findings(path)] == [], f"instead: {INSTEAD}"
