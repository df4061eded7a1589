"""Run directories: made, resumed, refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.config.resolved import Resolved
from ramet.errors import ConfigError
from ramet.runs.manifest import Manifest, read_manifest
from ramet.runs.run_dir import RunDir


def test_a_fresh_directory_names_itself_after_time_and_a_word(tmp_path: Path):
    with RunDir.open(tmp_path / "runs") as one, RunDir.open(tmp_path / "runs") as other:
        assert one.path != other.path
        assert re.fullmatch(r"\d{8}-\d{6}-[a-z]+", one.path.name)
        assert not one.resumed
        assert one.rollouts.is_dir() and one.checkpoints.is_dir()


def test_a_named_run_is_resumed_and_keeps_its_attempts(
    tmp_path: Path, resolved: Callable[..., Resolved], manifest: Callable[..., Manifest]
):
    for attempt in (1, 2):
        with RunDir.open(tmp_path, "mine") as run:
            assert run.resumed == (attempt == 2)
            assert run.check_resume(resolved(), manifest()) == []
            run.record(resolved(), manifest())
    written = json.loads((tmp_path / "mine/manifest.json").read_text())
    assert [attempt["status"] for attempt in written["attempts"]] == ["done", "done"]
    assert (tmp_path / "mine/config.yaml").read_text() == "run:\n  seed: 1\n"
    assert (tmp_path / "mine/overrides.txt").read_text() == "run.seed=1\n"


def test_a_run_keeps_its_id_and_one_that_began_without_gets_one(
    tmp_path: Path, resolved: Callable[..., Resolved], manifest: Callable[..., Manifest]
):
    file, ids = tmp_path / "mine/manifest.json", []
    for attempt in range(4):
        with RunDir.open(tmp_path, "mine") as run:
            run.record(resolved(), manifest())
        ids.append(read_manifest(file).id)
        if attempt == 1:  # as written before ids were recorded
            file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "id"}))
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert all(re.fullmatch(r"[0-9a-f]{12}", one) for one in ids)


@pytest.mark.parametrize(("error", "status"), [(ValueError(), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_the_manifest_says_how_an_attempt_ended(
    tmp_path: Path,
    error: BaseException,
    status: str,
    resolved: Callable[..., Resolved],
    manifest: Callable[..., Manifest],
):
    with pytest.raises(type(error)), RunDir.open(tmp_path, "mine") as run:
        run.record(resolved(), manifest())
        raise error
    attempt = read_manifest(tmp_path / "mine/manifest.json").attempts[0]
    assert (attempt.status, attempt.pid) == (status, os.getpid())
    assert attempt.ended is not None


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "x" * 200])
def test_a_name_that_is_no_directory_name_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match=r"run\.name=.*allowed: letters"):
        RunDir.open(tmp_path, name)


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write the run directory"):
        RunDir.open(tmp_path / "file", "mine")
