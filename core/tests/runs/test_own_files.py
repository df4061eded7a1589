"""What of a directory is a run's, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.config.resolved import Resolved
from ramet.errors import ConfigError
from ramet.runs.manifest import Manifest
from ramet.runs.run_dir import RunDir


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        (["thesis.tex"], "thesis.tex"),
        (["config.yaml"], "config.yaml"),  # a name of ours, in a folder that is not ours
        ([".thesis.tmp", "LOCK"], ".thesis.tmp"),
        (["checkpoints/step_000001/weights.bin", "LOCK"], "checkpoints/step_000001"),
        (["rollouts/notes.txt"], "rollouts/notes.txt"),
        (["a", "b", "c", "d", "e"], "a, b, c, …"),
    ],
)
def test_a_folder_that_holds_anything_but_a_run_is_refused_and_left_alone(tmp_path: Path, files: list[str], shown: str):
    for name in files:
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text("" if name == "LOCK" else "precious")
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError) as caught:
        RunDir.open(tmp_path, "mine")
    assert str(caught.value) == (
        f"run directory {str(tmp_path / 'mine')!r} has files that no run has written ({shown}), and no manifest.json "
        "of a run; choose another run.name or run.root"
    )
    assert snapshot(tmp_path) == before


def test_a_manifest_of_something_else_makes_no_run(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/manifest.json").write_text('{"manifest_version": 3, "name": "a browser extension"}')
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError) as caught:
        RunDir.open(tmp_path, "mine")
    assert str(caught.value) == f"{tmp_path / 'mine/manifest.json'}: format None; this ramet reads format 1"
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("last", ["LOCK", "config.yaml", "overrides.txt", ".manifest.json.0a1b2c3d.tmp"])
def test_what_a_torn_start_leaves_is_taken_over(tmp_path: Path, last: str):
    left = ["LOCK", "config.yaml", "overrides.txt", ".manifest.json.0a1b2c3d.tmp"]
    for folder in ("rollouts", "checkpoints"):
        (tmp_path / "mine" / folder).mkdir(parents=True)
    for name in left[: left.index(last) + 1]:
        (tmp_path / "mine" / name).touch()
    with RunDir.open(tmp_path, "mine") as run:
        assert not run.resumed
        assert not list(run.path.glob(".*.tmp"))


def test_parts_of_a_record_that_a_kill_left_are_deleted_by_the_next_process(
    tmp_path: Path, resolved: Callable[..., Resolved], manifest: Callable[..., Manifest]
):
    with RunDir.open(tmp_path, "mine") as run:
        run.record(resolved(), manifest())
    rollouts = tmp_path / "mine/rollouts"
    for name in (".step_000002.0a1b2c3d.tmp", ".step_000001.0a1b2c3d.old", "step_000001"):
        (rollouts / name).mkdir()
        (rollouts / name / "part_000.jsonl.gz").touch()
    with RunDir.open(tmp_path, "mine"):
        assert [path.name for path in rollouts.iterdir()] == ["step_000001"]


def test_only_names_that_ramet_writes_are_deleted(
    tmp_path: Path, resolved: Callable[..., Resolved], manifest: Callable[..., Manifest]
):
    with RunDir.open(tmp_path, "mine") as run:
        run.record(resolved(), manifest())
    ours = [".config.yaml.0a1b2c3d.tmp", ".ranks.17.tmp", ".metrics.jsonl.0a1b2c3d.tmp", ".sft.json.0a1b2c3d.tmp"]
    ours.append("rollouts/.step_000012.jsonl.gz.0a1b2c3d.tmp")
    theirs = [".thesis.tmp", ".config.yaml.tmp.tmp", "rollouts/.notes.tmp", ".ranks.old.tmp"]
    for name in [*ours, *theirs]:
        (run.path / name).touch()
    RunDir.open(tmp_path, "mine").close()
    assert [name for name in [*ours, *theirs] if (run.path / name).exists()] == theirs


@pytest.mark.parametrize("name", ["metrics.jsonl", "model", "checkpoints", "rollouts", "results.json.partial.jsonl"])
def test_a_run_writes_through_no_link_that_lies_in_its_directory(
    tmp_path: Path, name: str, resolved: Callable[..., Resolved], manifest: Callable[..., Manifest]
):
    with RunDir.open(tmp_path / "runs", "mine") as run:
        run.record(resolved(), manifest())
    if (run.path / name).is_dir():
        (run.path / name).rmdir()
    (tmp_path / "precious").write_text("a line\nand one without an end")
    (run.path / name).symlink_to(tmp_path / "precious")
    before = snapshot(tmp_path)
    expected = (
        f"run directory {str(run.path)!r} contains links ({name}), and a run writes only into its own directory; "
        "replace the links by their targets, or choose another run.name"
    )
    with pytest.raises(ConfigError) as caught:
        RunDir.open(tmp_path / "runs", "mine")
    assert str(caught.value) == expected
    assert snapshot(tmp_path) == before
