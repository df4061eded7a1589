"""Builds every wheel, or takes those in a folder, and proves that each works with the core and what it declares alone:
in fresh virtual environments that hold nothing else, from an empty directory.

Of each: it installs and `pip check` is clean, every public module imports, `ramet plugins` shows it healthy, what it
offers and its presets compose, and its tests pass, except slow ones. What needs an extra that is not installed must say
so by its import: it is counted under that extra. Prints one row per package; exit code 1 and the reasons if anything is
wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from isolated import Result, check, project_of
from wheelhouse import CommandFailed, build

ROOT = Path(__file__).resolve().parents[2]
AT_A_TIME = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/check_wheels.sh", description=__doc__.partition("\n\n")[0])
    parser.add_argument("packages", nargs="*", help="core, plugins/arpo, …; default: all")
    parser.add_argument("--together", nargs="+", default=[], help="packages that share one environment, to save time")
    parser.add_argument("--built", type=Path, help="a folder with wheels of the packages, which are then not built")
    parser.add_argument("--work", type=Path, help="an empty directory for wheels and environments, which then stay")
    found = parser.parse_args()
    packages = [ROOT / name for name in found.packages] or every_package()
    together = [ROOT / name for name in found.together]
    if found.built is not None and not any(found.built.glob("*.whl")):
        parser.error(f"--built: no wheels in {found.built} (working directory: {Path.cwd()})")
    if found.work is not None and found.work.is_dir() and any(found.work.iterdir()):
        parser.error(f"--work: {found.work} is not empty")
    try:
        with work_folder(found.work) as work:
            return prove(packages, together, work, found.built and found.built.resolve())
    except CommandFailed as error:
        print(f"the wheels could not be built: {error}", file=sys.stderr)
        return 2


@contextmanager
def work_folder(chosen: Path | None) -> Iterator[Path]:
    """The one that was chosen, which stays, or one that is removed."""
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="ramet-wheels-") as folder:
            yield Path(folder).resolve()
    else:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen.resolve()


def every_package() -> list[Path]:
    """Those that have code, from the directories, so that no list can be forgotten."""
    return [ROOT / "core", *sorted(path.parent for path in ROOT.glob("plugins/*/src"))]


def needed_by(packages: list[Path]) -> list[Path]:
    """Other plugins of this repository that these declare."""
    needs = {need for package in packages for need in project_of(package)["dependencies"]}
    names = {re.split(r"[^\w.-]", need)[0] for need in needs}
    return [package for package in every_package()[1:] if project_of(package)["name"] in names]


def prove(alone: list[Path], together: list[Path], work: Path, built: Path | None = None) -> int:
    started = time.monotonic()
    packages = [*alone, *together]
    others = [p for p in packages if p != ROOT / "core"]
    wheelhouse = build(work, [ROOT / "core", *others, *(p for p in needed_by(others) if p not in others)], built)
    how = "built" if built is None else "took"
    print(f"{how} {len(wheelhouse.wheels)} wheels and fetched what they need in {time.monotonic() - started:.0f} s")
    slowest_first = sorted(alone, key=lambda p: -len(list((p / "tests").rglob("test_*.py"))))
    environments = [[package] for package in slowest_first] + ([together] if together else [])
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        checked = pool.map(lambda packages: check(packages, wheelhouse, work), environments)
        results = [result for results in checked for result in results]
    print(table(sorted(results, key=lambda r: packages.index(r.package))))
    for result in results:
        for problem in result.problems:
            print(f"\n{result.name}: {problem}")
    n_wrong = sum(bool(result.problems) for result in results)
    verdict = f"{n_wrong} of {len(results)} packages are not in order" if n_wrong else "every package works alone"
    print(f"\n{verdict} ({time.monotonic() - started:.0f} s)")
    return 1 if n_wrong else 0


def table(results: list[Result]) -> str:
    head = ("PACKAGE", "INSTALL", "MODULES", "OFFERS AND PRESETS", "TESTS", "")
    rows = [head, *(result.row() for result in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


if __name__ == "__main__":
    sys.exit(main())
