"""The folders of a quickstart: what an earlier one left is removed, and nothing else of that name is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ramet.errors import ConfigError, raise_all
from ramet.runs.lock import RunLock
from ramet.runs.manifest import MANIFEST, read_manifest
from ramet.runs.own_files import check_run_folder

MARK = "quickstart.lock"  # in the folder of inputs; held by the quickstart that runs
SCRIPT = ("scripts", "quickstart")  # how the path of this script ends


def claim(run: Path, inputs: Path) -> RunLock:
    """Remove both folders, except for the lock of this quickstart, which is in `inputs`.

    Raises `ConfigErrors`, before anything is removed, for what no quickstart made or another program went on with, and
    `ConfigError` while another quickstart has them.
    """
    foreign = [folder for folder, own in ((run, _is_run(run)), (inputs, _is_inputs(inputs))) if not own]
    raise_all(
        f"{folder} exists, and no quickstart made it; move it away, or choose another folder with --root"
        for folder in foreign
    )
    inputs.mkdir(parents=True, exist_ok=True)
    lock = RunLock(inputs / MARK)
    lock.acquire()
    for path in (run, *inputs.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARK:
            path.unlink(missing_ok=True)
    return lock


def _is_run(folder: Path) -> bool:
    """Whether there is none, or one on which this script alone has worked, as its manifest says."""
    if not _is_folder(folder):
        return not os.path.lexists(folder)
    try:
        check_run_folder(folder)
        attempts = read_manifest(folder / MANIFEST).attempts if (folder / MANIFEST).exists() else []
    except (ConfigError, OSError):
        return False
    return all(_is_script(attempt.argv) for attempt in attempts)  # none: a start that was killed


def _is_inputs(folder: Path) -> bool:
    if not _is_folder(folder):
        return not os.path.lexists(folder)
    return (folder / MARK).is_file() or not any(folder.iterdir())


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_script(argv: list[str]) -> bool:
    path = Path(argv[0] if argv else "").resolve()
    return (path.parent if path.name == "__main__.py" else path).parts[-2:] == SCRIPT
