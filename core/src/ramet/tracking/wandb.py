"""Weights & Biases as a tracker (`pip install 'ramet[wandb]'`).

A run keeps its id, so a resumed one continues as the same run there. W&B's own steps only grow, and a resume redoes the
steps after its checkpoint: metrics are drawn over a metric `step`, and a step that was logged already is left out. Rows
that a killed process had not handed over are taken from the run's metrics file.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from ramet.config.secrets import hide
from ramet.errors import ConfigError, MissingHere
from ramet.io.atomic import write_file
from ramet.tracking.jsonl import NAME, MetricLine, read_metrics
from ramet.types import TrackedRun

logger = logging.getLogger(__name__)
PROJECT = "ramet"
FOLDER = "wandb"  # of W&B's files, in the run's directory
STEP = "step"
INIT_S = 60.0  # for the server to answer at the start
FINISH_S = 15.0  # for uploads at the end of the run; what is left can be uploaded with `wandb sync`
NO_KEY = "there is no key (WANDB_API_KEY, or `wandb login`)"


class WandbMode(StrEnum):
    AUTO = "auto"  # online with a key, offline without
    ONLINE = "online"
    OFFLINE = "offline"


@dataclass(kw_only=True, slots=True)
class WandbOptions:
    """The options below the key `wandb`."""

    project: str | None = None  # None: WANDB_PROJECT, or `ramet`
    entity: str | None = None  # user or team; None: WANDB_ENTITY, or the key's own
    name: str | None = None  # of the run there; None: the name of its directory
    group: str | None = None  # of runs there
    tags: list[str] = field(default_factory=list)
    mode: WandbMode = WandbMode.AUTO

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> WandbOptions:
        """Make the options of the key's entries, whose names were checked. Raises `ConfigError` for other values."""
        options: dict[str, Any] = dict(entries)
        if not isinstance(options.get("tags", []), list):
            raise ConfigError(f"wandb.tags={options['tags']}: expected a list of texts")
        if (mode := options.pop("mode", WandbMode.AUTO)) not in list(WandbMode):
            raise ConfigError(f"wandb.mode={mode}: allowed: {', '.join(WandbMode)}")
        texts = {name: None if value is None else str(value) for name, value in options.items() if name != "tags"}
        return cls(**texts, tags=[str(tag) for tag in options.get("tags", [])], mode=WandbMode(mode))


class WandbTracker:
    """One run there. Without a key it is offline: nothing asks the network, and `wandb sync` uploads it later."""

    def __init__(self, run: TrackedRun, options: WandbOptions) -> None:
        quiet_imports()
        import wandb
        from wandb.sdk import wandb_setup

        user = wandb_setup.singleton().settings  # of WANDB_… variables and W&B's own files
        offline = _is_offline(options.mode, user.mode)
        self._redone = range(0)  # steps that were logged before the run was resumed
        self._metrics = run.folder / NAME
        self._handed = HandedOver.read(run)
        self._exit_code = 0
        self._run = wandb.init(
            project=options.project or user.project or PROJECT,
            entity=options.entity,
            name=options.name or run.folder.resolve().name,
            group=options.group,
            tags=list(options.tags),
            job_type=run.job or None,
            id=run.id or None,
            resume="allow" if run.id else None,
            mode="offline" if offline else "online",
            dir=run.folder,
            config=_config(run.folder / "config.yaml"),
            reinit="create_new",  # several runs of one process, as in a sweep, are apart
            settings=wandb.Settings(
                silent=True,
                console="off",
                save_code=False,
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,  # it holds the command line as it was typed
                init_timeout=INIT_S,
                finish_timeout=FINISH_S,
            ),
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)
        self._say_where(run.folder, offline, asked=options.mode is WandbMode.OFFLINE)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step not in self._redone:
            self._run.log({STEP: step, **{name: float(value) for name, value in metrics.items()}})
            self._handed.add(step)

    def rewind(self, step: int) -> None:
        for entry in self._handed.missing(read_metrics(self._metrics), step):
            self.log(entry.step, entry.metrics)
        self._redone = range(step + 1, self._handed.step + 1)

    def ended(self, exit_code: int) -> None:
        self._exit_code = exit_code

    def close(self) -> None:
        self._run.finish(exit_code=self._exit_code)

    def _say_where(self, folder: Path, offline: bool, *, asked: bool) -> None:
        if offline:
            why = "" if asked else f", since {NO_KEY}" if not has_key() else ", as WANDB_MODE says"
            files = f"--id {self._run.id} {folder / FOLDER}/offline-run-*"  # with the id, a resumed run is one
            logger.info("wandb: offline%s; upload with: wandb sync %s", why, files)
        else:
            logger.info("wandb: %s", self._run.url)


@dataclass(slots=True, kw_only=True)
class HandedOver:
    """How far W&B has a run's rows, kept in a file that is written after each of them."""

    file: Path
    id: str  # of the run there
    step: int = -1
    rows: int = 0  # of that step

    @classmethod
    def read(cls, run: TrackedRun) -> HandedOver:
        """Read what was handed over; without such a file W&B has all that was logged if it has anything of the run."""
        file = run.folder / FOLDER / "handed_over.json"
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            same, step, rows = stored["id"] == run.id, int(stored["step"]), int(stored["rows"])
        except FileNotFoundError:
            same, step, rows = file.parent.is_dir(), run.logged, sys.maxsize
        except (ValueError, KeyError, TypeError):
            same, step, rows = True, run.logged, sys.maxsize
        return cls(file=file, id=run.id, step=step, rows=rows) if same else cls(file=file, id=run.id)

    def add(self, step: int) -> None:
        if step < self.step:  # repeated after a resume
            return
        self.step, self.rows = step, (self.rows + 1 if step == self.step else 1)
        write_file(self.file, json.dumps({"id": self.id, "step": self.step, "rows": self.rows}))

    def missing(self, logged: Iterable[MetricLine], last: int) -> list[MetricLine]:
        """Rows up to the step `last` that W&B does not have."""
        here = 0
        unsent = []
        for entry in logged:
            here += entry.step == self.step
            if self.step < entry.step <= last or (entry.step == self.step <= last and here > self.rows):
                unsent.append(entry)
        return unsent


def check_wandb(options: WandbOptions) -> list[str]:
    """Problems that a run would have with W&B. Asks no network."""
    if options.mode is WandbMode.ONLINE and not has_key():
        problem = f"wandb.mode=online: {NO_KEY}; wandb.mode=auto is offline then"
        return [MissingHere(problem, missing="a key of W&B", unchecked="whether it is one")]
    return []


def has_key() -> bool:
    """Whether W&B would find a key, in the environment or in its own files."""
    quiet_imports()
    from wandb.sdk import wandb_setup
    from wandb.sdk.lib.wbauth import read_netrc_auth

    user = wandb_setup.singleton().settings
    variables = (os.environ.get("WANDB_API_KEY"), os.environ.get("WANDB_IDENTITY_TOKEN_FILE"))
    return bool(any(variables) or user.api_key or read_netrc_auth(host=user.base_url))


def quiet_imports() -> None:
    """Switch off, before wandb is imported, that it reports its own errors to its makers, unless the user chose."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _is_offline(mode: WandbMode, user: str | None) -> bool:
    """`user` is what WANDB_MODE says; online is W&B's default, so it says nothing."""
    if mode is not WandbMode.AUTO:
        return mode is WandbMode.OFFLINE
    return user not in (None, "online") or not has_key()


def _config(file: Path) -> dict[str, Any]:
    """The run's recorded configuration, in which secrets are `${oc.env:NAME}`."""
    if not file.is_file():
        return {}
    recorded = _hidden(yaml.safe_load(file.read_text(encoding="utf-8")))
    return recorded if isinstance(recorded, dict) else {}


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    return hide(value) if isinstance(value, str) else value
