"""The directory of a run: `runs/NAME`, resumed if it is there, or a fresh one that names itself.

    config.yaml  overrides.txt  manifest.json  LOCK  rollouts/  checkpoints/
    (metrics.jsonl, run.log, report.html, services/: others)

Order at the start: `open` (takes the lock), `check_resume`, `record` (writes what this process is about to do).
"""

from __future__ import annotations

import logging
import secrets
from datetime import datetime
from pathlib import Path
from types import TracebackType

from ramet.config.checks import RUN_NAME, RUN_NAME_RULE
from ramet.config.resolved import Resolved
from ramet.config.secrets import hide_argument
from ramet.errors import ConfigError
from ramet.io.atomic import write_file
from ramet.io.os_errors import os_error_text
from ramet.runs.lock import RunLock
from ramet.runs.manifest import MANIFEST, Manifest, now, read_manifest, write_manifest
from ramet.runs.own_files import check_run_folder, remove_torn
from ramet.runs.resume import RunState, changes, check_resume

logger = logging.getLogger(__name__)
RUN_LOG = "run.log"
WORDS = (
    "alder", "apple", "aspen", "birch", "bracken", "cedar", "clover", "elder", "fern", "gorse", "hazel", "heather",
    "holly", "iris", "ivy", "juniper", "larch", "laurel", "lilac", "linden", "maple", "mint", "moss", "oak", "olive",
    "pine", "poplar", "reed", "rowan", "sage", "sorrel", "thyme", "willow", "yarrow", "yew",
)  # fmt: skip


class RunDir:
    """An open run directory. Use it as a context manager, or call `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.resumed = False  # whether an earlier process recorded itself here
        self._is_another = False  # nothing of the earlier process is left but its records
        self.rollouts = path / "rollouts"
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.log = path / RUN_LOG
        self.services = path / "services"  # made when a component first asks for a folder
        self._manifest_path = path / MANIFEST
        self._lock = RunLock(path / "LOCK")
        self._manifest: Manifest | None = None

    @classmethod
    def open(cls, root: str | Path, name: str | None = None) -> RunDir:
        """Make or find the directory and take its lock.

        Raises `ConfigError` for a name, permissions, a directory in use, and one with other files than a run's.
        """
        root = Path(root)
        try:
            run = cls(_named(root, name) if name is not None else _fresh(root))
            check_run_folder(run.path)
            run._lock.acquire()
            run.resumed = run._manifest_path.exists()
            run.rollouts.mkdir(exist_ok=True)
            run.checkpoints.mkdir(exist_ok=True)
            remove_torn(run.path)
        except OSError as error:
            raise ConfigError(
                f"cannot write the run directory {str(root / (name or ''))!r}: {os_error_text(error)}"
            ) from error
        return run

    def check_resume(self, resolved: Resolved, manifest: Manifest) -> list[str]:
        """Return why this run may not continue with that configuration and manifest; empty for a fresh directory."""
        if not self.resumed:
            return []
        old = RunState.read(self.path)
        new = RunState(config=resolved.text, manifest=manifest)
        self._is_another = not old.saved and bool(changes(old, new).harmful)
        return check_resume(old, new, allow=resolved.config.run.allow_config_change)

    def record(self, resolved: Resolved, manifest: Manifest) -> None:
        """Write configuration, overrides and manifest; attempts of earlier processes are kept before this one's."""
        if self.resumed:
            earlier = read_manifest(self._manifest_path)
            if not self._is_another:  # trackers would continue the steps of the earlier one
                manifest.id = earlier.id or manifest.id
            manifest.attempts = [*earlier.attempts, *manifest.attempts]
        if resolved.config.run.private:
            self.path.chmod(0o700)  # it may have been made before
        write_file(self.path / "config.yaml", resolved.text)
        write_file(self.path / "overrides.txt", "".join(f"{hide_argument(text)}\n" for text in resolved.overrides))
        write_manifest(self._manifest_path, manifest)  # last: where it is, the others are too
        self._manifest = manifest

    def finish(self, status: str) -> None:
        """Note how this attempt ended: done, failed or interrupted. A directory that is gone is not made again."""
        if self._manifest is not None and self._manifest_path.exists():
            self._manifest.attempts[-1].status = status
            self._manifest.attempts[-1].ended = now()
            write_manifest(self._manifest_path, self._manifest)

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._manifest is not None and self._manifest.attempts[-1].ended is None:
                stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
                self.finish("done" if kind is None else "interrupted" if stopped else "failed")
        except OSError as failed:
            if error is None:
                raise
            logger.warning("how this run ended is not in its manifest: %s", os_error_text(failed))
        finally:
            self.close()


def _named(root: Path, name: str) -> Path:
    if not RUN_NAME.fullmatch(name):
        raise ConfigError(f"run.name={name}: {RUN_NAME_RULE}")
    path = root / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def _fresh(root: Path) -> Path:
    """`<date>-<time>-<word>`; another word if two runs begin in the same second."""
    root.mkdir(parents=True, exist_ok=True)
    while True:
        path = root / f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.choice(WORDS)}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
