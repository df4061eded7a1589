"""Make a recipe of a source: read it, count its rows, translate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramet.config.foreign import follow_references, read_keys
from ramet.data.files import PARQUET, find_files, read_rows
from ramet.errors import ConfigError
from ramet.migrate import launch, llamafactory, trl, verl, verl_sft
from ramet.migrate.script_trl import read_trl
from ramet.migrate.translation import Settings, Translation, as_list


def migrate(
    trainer: str,
    source: Path | None,
    overrides: Sequence[str] = (),
    *,
    config: Path | None = None,
    tasks: int | None = None,
    gpus: int | None = None,
) -> Translation:
    """Translate a file of a trainer, or overrides of verl. Raises `ConfigError` for what cannot be read."""
    for name, number in (("tasks", tasks), ("gpus", gpus)):
        if number is not None and number < 1:
            raise ConfigError(f"--{name}={number}: must be at least 1")
    if source is None or trainer == "verl":
        settings = launch.of_overrides(overrides, config) if source is None else launch.of_script(source, config)
        is_sft = settings.is_sft
        made = (
            verl_sft.translate(settings.values, processes=settings.processes) if is_sft else _of_verl(settings, tasks)
        )
    elif trainer == "llamafactory":
        values, unread = follow_references(read_keys(source))
        settings = Settings(values=values, unread=unread)
        made = llamafactory.translate(values, folder=source.resolve().parent, gpus=gpus)
    else:
        settings = script = read_trl(source)
        made = trl.translate(script, folder=source.resolve().parent, gpus=gpus, tasks=tasks)
    made.unread, made.remarks = settings.unread, settings.remarks
    return made


def _of_verl(settings: Settings, tasks: int | None) -> Translation:
    column = str(settings.values.get("data.reward_fn_key") or "data_source")
    trained, validated = (
        _rows(as_list(settings.values.get(f"data.{files}") or []), column) for files in ("train_files", "val_files")
    )
    if trained is None:
        return verl.translate(settings.values, tasks=tasks, tools=settings.tools)
    sources = {source for source in (*trained, *(validated or ())) if source}
    return verl.translate(settings.values, tasks=tasks or trained.total(), sources=sources, tools=settings.tools)


def _rows(files: Sequence[str], column: str) -> Counter[str] | None:
    """Return how many rows of each data source these files have; None if one is not here, or cannot be read."""
    paths, problems = find_files(files)
    if problems or not paths:
        return None
    try:
        return Counter(str(source) for path in paths for source in _column(path, column))
    except (ConfigError, OSError, ValueError):
        return None


def _column(path: Path, name: str) -> list[Any]:
    """Return the values of a column, an empty text for each row without it."""
    if path.suffix != PARQUET:
        return [row.values.get(name, "") for row in read_rows(path)]
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        is_there = name in file.schema_arrow.names
        values: list[Any] = (
            file.read(columns=[name]).column(0).to_pylist() if is_there else [""] * file.metadata.num_rows
        )
        return values
