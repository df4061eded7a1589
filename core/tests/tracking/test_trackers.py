from __future__ import annotations

import errno
import io
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from ramet.config.schema import Config
from ramet.errors import ConfigError
from ramet.tracking.jsonl import JsonlTracker, read_metrics
from ramet.tracking.trackers import Trackers, check_trackers, make_trackers
from ramet.types import TrackedRun

METRICS = {"reward/roots_mean": 0.5, "rollout/masked_share": 0.25, "train/entropy": 0.1, "time/step_s": 95.0}


class Failing:
    """A tracker whose service is down."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise ConnectionError("no route to host")

    def rewind(self, step: int) -> None:
        raise ConnectionError("no route to host")

    def close(self) -> None:
        pass


def test_an_unknown_tracker_is_named_with_those_that_are_allowed(tmp_path: Path) -> None:
    assert check_trackers(Config()) == []
    with pytest.raises(ConfigError) as caught:
        make_trackers(Config(trackers=["console", "wandbb"]), TrackedRun(folder=tmp_path, total_steps=1))
    assert str(caught.value) == (
        "trackers: no tracker 'wandbb'. Did you mean 'wandb'? Trackers: console, jsonl, wandb, tensorboard, samples"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_metrics_file_is_written_whatever_trackers_are_chosen(tmp_path: Path) -> None:
    trackers = make_trackers(Config(trackers=[]), TrackedRun(folder=tmp_path, total_steps=1))
    trackers.log(1, METRICS)
    trackers.close()
    assert [entry.metrics for entry in read_metrics(tmp_path / "metrics.jsonl")] == [METRICS]


def test_a_failing_tracker_is_reported_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trackers = Trackers({"broken": Failing(), "jsonl": JsonlTracker(tmp_path / "metrics.jsonl")})
    with caplog.at_level(logging.WARNING):
        for step in range(1, 6):
            trackers.log(step, METRICS)
    assert len(caplog.records) == 1 and "no route to host" in caplog.text
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 5
    trackers.close()
    assert "failed 5 times" in caplog.text


def test_a_tracker_whose_package_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert check_trackers(Config(trackers=["wandb", "tensorboard"])) == [
        "trackers: 'wandb' needs the package 'wandb'; install it with: pip install 'ramet[wandb]'",
        "trackers: 'tensorboard' needs the package 'tensorboard'; install it with: pip install 'ramet[tensorboard]'",
    ]


def test_options_of_a_tracker_that_is_not_chosen_are_refused() -> None:
    config = Config(trackers=["console"], wandb={"project": "p", "mode": "offline"})
    assert check_trackers(config, frozenset({"wandb.project", "wandb.mode", "train.steps"})) == [
        "wandb.mode: has no effect without its tracker; add it, as in trackers=[console,wandb]",
        "wandb.project: has no effect without its tracker; add it, as in trackers=[console,wandb]",
    ]
    assert check_trackers(config) == []  # a preset may set them


def test_a_full_disk_loses_whole_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    trackers = Trackers({"jsonl": JsonlTracker(path)})
    trackers.log(1, METRICS)
    real_open = Path.open

    def full(self: Path, *args: object, **kwargs: object) -> object:
        return _HalfWriter(real_open(self, "ab", buffering=0))  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        trackers.log(2, METRICS)
    trackers.log(3, METRICS)
    assert trackers.failures == {"jsonl": 1}
    assert [entry.step for entry in read_metrics(path)] == [1, 3]
    assert path.read_bytes().count(b"\n") == 2


class _HalfWriter:
    """Writes half of what it is given, then fails as on a full disk."""

    def __init__(self, file: io.FileIO) -> None:
        self.file = file
        self.tell, self.truncate = file.tell, file.truncate

    def __enter__(self) -> _HalfWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> int:
        self.file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left on device")
