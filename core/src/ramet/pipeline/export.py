"""The stage `export`: `ramet export`, with a record of its input and whether it is complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.io.atomic import write_file
from ramet.pipeline.stages import TRUST_CODE, Stage
from ramet.runs.manifest import MANIFEST, model_fingerprint, read_manifest

RECORD = "export.json"
RunsRamet = Callable[[list[str]], int]  # runs `ramet WORDS` in this process, and returns its exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecord:
    """The content of `export.json`, written before the model and again after it."""

    run: str  # id of the run that was exported
    model: str | None  # fingerprint of the model that the run had left; None: it had not finished
    dtype: str | None  # None: the run's
    finished: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ExportRecord:
        run = Path(str(options["run"]))
        model = model_fingerprint(run / "model") if (run / "model").is_dir() else None
        return cls(run=read_manifest(run / MANIFEST).id, model=model, dtype=options.get("dtype"))

    @classmethod
    def read(cls, folder: Path) -> ExportRecord | None:
        """Return what the folder of a stage has; None if no export has begun there. Raises `ConfigError`."""
        file = folder / RECORD
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{file}: not the record of an export: {error}") from error

    @property
    def described(self) -> str:
        model = "" if self.model is None else f" with the model {self.model[:12]}"
        return f"{self.dtype or 'the dtype'} of run {self.run}{model}"

    def write(self, folder: Path) -> None:
        write_file(folder / RECORD, json.dumps(asdict(self), indent=2) + "\n")


def is_exported(stage: Stage, options: Mapping[str, Any]) -> bool:
    """Whether the stage is finished. Raises `ConfigError` if other files are in its folder."""
    record = ExportRecord.read(stage.folder)
    if record is None:
        if stage.folder.is_dir() and any(stage.folder.iterdir()):
            raise ConfigError(f"{stage.folder} is there, and no pipeline made it; choose another run.name")
        return False
    if not record.finished or not stage.model.is_dir():
        return False
    new = replace(ExportRecord.of(options), finished=True)
    if new != record:
        was, now = (exported.described for exported in (record, new))
        raise ConfigError(
            f"is finished, and {stage.model} is {was}, is to be {now}: undo it, delete {stage.folder}, or choose "
            "another run.name"
        )
    return True


def export(stage: Stage, options: Mapping[str, Any], ramet: RunsRamet) -> int:
    """Export into the folder of the stage and return the exit code. Leftovers of a killed export are deleted."""
    record = ExportRecord.of(options)
    record.write(stage.folder)
    for left in (stage.model, *stage.folder.glob(f".{stage.model.name}.*.tmp")):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
    dtype = ["--dtype", str(record.dtype)] if record.dtype is not None else []
    trust = ["--trust-remote-code"] if options.get(TRUST_CODE) is True else []
    code = ramet(["export", str(options["run"]), str(stage.model), *dtype, *trust])
    if code == 0:
        replace(record, finished=True).write(stage.folder)
    return code
