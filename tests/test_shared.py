"""Only published data stays outside the repository: a few tests need it, and a run says at its end which were skipped.

`scripts/test_without_shared.sh` runs all tests where there is no `../shared`, `scripts/test_with_shared.sh` those that
look there where it is. `.ci/run` calls both.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOOKS = '/ "shared"'  # how a test looks there
WITHOUT_IT = ["Makefile", "requirements-*.txt", "scripts/quickstart/**/*", "core/src/**/*", "plugins/*/src/**/*"]
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="needs ../shared/data/rl")
@pytest.mark.parametrize("n", range(3))
def test_that_needs_rows(n): ...

@pytest.mark.skipif(True, reason="needs ../shared/data/eval/gsm8k")
def test_that_needs_questions(): ...

@pytest.mark.skipif(True, reason="needs a GPU")
def test_of_something_else(): ...

def test_that_passes(): ...
"""


def run_tests(folder: Path, tests: str, *options: str) -> list[str]:
    """The last lines of a run under the root's `conftest.py`."""
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "test_them.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "--rootdir", folder, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_what_was_skipped_for_want_of_data_is_counted_and_named_in_one_line(tmp_path: Path, options: tuple[str, ...]):
    said = [line for line in run_tests(tmp_path, TESTS, *options) if "shared" in line]
    assert said == [
        "skipped for want of ../shared: 4 tests, which need ../shared/data/eval/gsm8k for test_them.py (1), "
        "../shared/data/rl for test_them.py (3)"
    ]


def test_nothing_is_said_where_nothing_is_missing(tmp_path: Path) -> None:
    rest = TESTS.replace("skipif(True, reason=", "skipif(False, reason=")
    assert "shared" not in "\n".join(run_tests(tmp_path, rest))


def test_only_tests_that_need_it_run_with_the_option_published(tmp_path: Path) -> None:
    lines = run_tests(tmp_path, TESTS.replace("skipif(True,", "skipif(False,"), "--published")
    assert "4 passed, 2 deselected" in lines[-1]


def test_a_test_that_looks_there_says_what_it_needs() -> None:
    """In the words that the line at the end and `tests/test_wheels.py` know. Golden values are in `tests/golden`."""
    files = [path for folder in ("core/tests", "plugins", "tests") for path in (ROOT / folder).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path != Path(__file__)}
    looking = {path: text for path, text in texts.items() if LOOKS in text}
    assert looking
    assert not [path for path, text in looking.items() if 'reason="needs ../shared/' not in text]
    assert not [path for path, text in texts.items() if "shared/golden" in text and path.name != "test_wheels.py"]


@pytest.mark.parametrize("pattern", WITHOUT_IT)
def test_quickstart_and_packages_never_look_there(pattern: str) -> None:
    files = [path for path in ROOT.glob(pattern) if path.is_file() and path.suffix != ".pyc"]
    assert files
    looks = re.compile(rf"{re.escape(LOOKS)}|\.\./shared")
    assert not [path for path in files if looks.search(path.read_text(encoding="utf-8", errors="replace"))]
