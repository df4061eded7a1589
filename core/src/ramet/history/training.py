"""Trainings side by side: the reward or loss of their last steps, validation by step, time, and what was set
differently.

A step is the unit of intervals: the means of a training's steps, or the differences of two trainings in the steps that
both have. With the same data and `run.seed` a step has the same tasks in both. The last steps are at most `LAST_STEPS`,
and at most half of all, so that what a training began with is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

from ramet.config.stored import stored_names
from ramet.errors import ConfigError
from ramet.evaluate.setting_differences import SettingDifference, as_text
from ramet.evaluate.statistics import Estimate, over_tasks
from ramet.history.summary import LAST_STEPS, RESULTS, TRAININGS, RunSummary, TrainingCurves, summarise_run
from ramet.runs.manifest import MANIFEST, Attempt, Manifest, read_manifest
from ramet.runs.resume import ABSENT, RunState, config_differences
from ramet.tracking.jsonl import evenly_spaced

PLACES = ("run.name", "run.root", "run.out", "run.private")  # say where a run is, not what it does
MAPS = ("tools", "rewards")
PACKAGES = ("torch", "transformers")  # whose versions are compared; Ramet's are its plugins'


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One run of `ramet train` or `ramet sft`, as it is compared."""

    summary: RunSummary
    curves: TrainingCurves
    config: str  # YAML
    manifest: Manifest

    @classmethod
    def read(cls, folder: Path, name: str | None = None) -> Training:
        """Read a run directory; `name`: what it is called in tables, without one its own name.

        Raises `ConfigError` for a run that is not a training, and for one that has no step yet.
        """
        summary = summarise_run(folder)
        summary = summary if name is None else replace(summary, name=name)
        if summary.job not in TRAININGS:
            raise ConfigError(f"{folder} is a run of `ramet {summary.job}`, not a training")
        curves = TrainingCurves.read(folder, summary.job)
        if not curves.main[1]:
            raise ConfigError(f"{folder}: has no step yet: metrics.jsonl has no {TRAININGS[summary.job]}")
        state = RunState.read(folder)
        return cls(summary=summary, curves=curves, config=state.config, manifest=state.manifest)

    @property
    def result(self) -> str:
        """`reward` or `loss`."""
        return RESULTS[self.summary.job]

    @property
    def seconds(self) -> float | None:
        """Seconds of all attempts whose end was recorded; None without one."""
        ended = [length for attempt in self.manifest.attempts if (length := _length(attempt)) is not None]
        return sum(ended) if ended else None

    @property
    def step_seconds(self) -> float | None:
        return fmean(self.curves.seconds[1]) if self.curves.seconds[1] else None

    @property
    def hosts(self) -> str:
        return ", ".join(dict.fromkeys(attempt.host for attempt in self.manifest.attempts))

    @property
    def best_valid(self) -> tuple[int, float] | None:
        """Step and value of the best finite validation: the highest, of a loss the lowest; the first of equal ones."""
        steps, values = self.curves.valid
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None
        value = min(finite) if self.result == "loss" else max(finite)
        return int(steps[values.index(value)]), value

    def body(self) -> dict[str, Any]:
        """Return what is compared as plain values, for JSON."""
        last = self.curves.last()
        return {
            **self.summary.row(),
            "last_steps": self.curves.n_last,
            "last_mean": last.mean,
            "last_half_width": last.half_width,
            "valid_metric": self.curves.valid_name,
            "valid_by_step": {int(step): value for step, value in zip(*self.curves.valid, strict=True)},
            "best_valid": self.best_valid,
            "step_s": self.step_seconds,
            "seconds": self.seconds,
            "hosts": self.hosts,
        }


def kind_of(folder: Path) -> str:
    """The job of the run in `folder`; `eval` for one with results, `` for what is not a run."""
    if (folder / "results.json").is_file():
        return "eval"
    return read_manifest(folder / MANIFEST).job if (folder / MANIFEST).is_file() else ""


def difference_of_last(before: Training, after: Training) -> tuple[Estimate, list[int]]:
    """The mean of `after - before` over the last steps that both have, with its interval, and these steps."""
    first, second = (dict(zip(*training.curves.main, strict=True)) for training in (before, after))
    shared = sorted(first.keys() & second.keys())
    last = shared[len(shared) - min(LAST_STEPS, ceil(len(shared) / 2)) :]
    return over_tasks([second[step] - first[step] for step in last]), [int(step) for step in last]


def training_differences(before: Training, after: Training) -> list[SettingDifference]:
    """List what was set differently, and in what the recorded data, model, plugins, versions and host differ. Of a
    component that only one of them has, only the name is listed.
    """
    pairs = [*_key_differences(before.config, after.config), *_recorded(before.manifest, after.manifest)]
    pairs.append(("host", before.hosts, after.hosts))
    return [SettingDifference(setting=key, before=as_text(a), after=as_text(b)) for key, a, b in pairs if a != b]


def _key_differences(before: str, after: str) -> Iterator[tuple[str, Any, Any]]:
    changes = [change for change in config_differences(before, after) if change[0] not in PLACES]
    left_out = [f"{key.removesuffix('name')}params." for key, _, _ in changes if key.endswith(".name")]
    for section in MAPS:
        names = [stored_names(text, section) for text in (before, after)]
        for name in sorted(names[0] ^ names[1]):
            left_out.append(f"{section}.{name}.")
            is_first = name in names[0]
            yield f"{section}.{name}", "given" if is_first else ABSENT, ABSENT if is_first else "given"
    yield from (change for change in changes if not change[0].startswith(tuple(left_out)))


def _recorded(before: Manifest, after: Manifest) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted({*before.data, *after.data}):
        yield f"data of data.{name}", _data(before, name), _data(after, name)
    yield "files of the model", _short(before.model), _short(after.model)
    plugins = [{plugin.name: plugin.release for plugin in manifest.plugins} for manifest in (before, after)]
    for name in sorted({*plugins[0], *plugins[1]}):
        yield f"plugin {name}", plugins[0].get(name, ABSENT), plugins[1].get(name, ABSENT)
    for name in PACKAGES:
        yield f"version of {name}", before.versions.get(name, ABSENT), after.versions.get(name, ABSENT)


def _data(manifest: Manifest, name: str) -> str:
    data = manifest.data.get(name)
    return ABSENT if data is None else f"{data.tasks} tasks, sha256 {data.fingerprint[:12]}"


def _short(digest: str | None) -> str:
    return ABSENT if digest is None else f"sha256 {digest[:12]}"


def _length(attempt: Attempt) -> float | None:
    if attempt.ended is None:
        return None
    started, ended = (datetime.fromisoformat(text) for text in (attempt.started, attempt.ended))
    return (ended - started).total_seconds()


def shown_steps(trainings: Sequence[Training], most: int) -> list[int]:
    """Steps at which a validation is shown: steps of any training, at most `most`, evenly spaced, the last included."""
    return evenly_spaced(sorted({int(step) for training in trainings for step in training.curves.valid[0]}), most)
