"""The tests that documents name exist: what is promised with a test has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A file right in `tests/` without a test's name is that of a package that a document builds.
NAMED = re.compile(r"`((?:core|plugins|tests)/\w+/[\w/]*test_\w+\.py|tests/test_\w+\.py(?=::))(?:::(test_\w+))?`")
DOCUMENTS = sorted(path for path in (ROOT / "docs").glob("*.md") if NAMED.search(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    missing = []
    for file, name in NAMED.findall(document.read_text(encoding="utf-8")):
        path = ROOT / file
        if not path.is_file() or (name and not re.search(rf"def {name}\(", path.read_text(encoding="utf-8"))):
            missing.append(f"{file}::{name}")
    assert not missing


def test_faults_and_bad_input_are_among_them() -> None:
    assert {"faults.md", "bad_input.md"} <= {path.name for path in DOCUMENTS}
