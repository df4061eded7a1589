"""A disk that is full, a folder that is gone, at the worst moments: one line names the path, and a resume is right."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

import pytest

from ramet.evaluate.files import read_results

FULL = "No space left on device; free some space there"


def resume_words(err: str) -> list[str]:
    """The printed command, without `PYTHONPATH=… RAMET_PLUGINS=… ramet`."""
    [said] = [line for line in err.splitlines() if line.startswith("resume with: ")]
    return shlex.split(said.removeprefix("resume with: "))[3:]


def digest(*paths: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def outcome(run: Path) -> list[str]:
    """Weights and optimiser."""
    last = run / "checkpoints/step_000004"
    return digest(run / "model/model.safetensors", last / "__0_0.distcp")


@pytest.fixture(scope="module")
def undisturbed(ramet, workspace, tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    assert ramet(*workspace.train(f"run.root={root}", "run.name=run"), cwd=root).code == 0
    return outcome(root / "run")


def test_a_disk_that_fills_up_anywhere_costs_no_number(ramet, workspace, undisturbed, small_disk, tmp_path):
    run = small_disk.folder / "runs/run"
    command = workspace.train(f"run.root={small_disk.folder / 'runs'}", "run.name=run")
    errors = [
        ("start:0", f"error: {run}/config.yaml: {FULL}"),
        ("recording:1", f"error: {run}/rollouts/step_000001.jsonl.gz: {FULL}"),
        ("logging:1", f"error: {run}/rollouts/step_000002.jsonl.gz: {FULL}"),
        # A failed save frees what it took, and the run goes on to the next one.
        ("hashing:2", f"error: {run}/checkpoints/.tmp_step_000004_"),
        ("hashing:4", f"error: {run}/checkpoints/.tmp_step_000004_"),
        ("export:4", f"error: {run}/model: {FULL}"),
    ]
    for point, error in errors:
        log = tmp_path / point
        ended = ramet(*command, cwd=tmp_path, E2E_KILL=point, E2E_FILL=str(small_disk.ballast), E2E_KILL_LOG=str(log))
        assert log.exists(), f"nothing filled the disk at {point}: {ended.err}"
        assert ended.code == 2 and "Traceback" not in ended.err, (point, ended.err)
        last = ended.err.splitlines()[-1]
        assert last.startswith(error) if "hashing" in point else last == error, (point, last)
        if point == "hashing:2":
            assert "CHECKPOINT OF STEP 2 NOT SAVED" in ended.err
        command = resume_words(ended.err)
        small_disk.ballast.unlink()
    ended = ramet(*command, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert outcome(run) == undisturbed
    assert json.loads((run / "manifest.json").read_text())["attempts"][-1]["status"] == "done"


def test_a_run_whose_folder_is_deleted_ends_and_does_not_make_it_again(ramet, workspace, tmp_path):
    run = tmp_path / "run"
    more = {"E2E_KILL": "scored:2", "E2E_REMOVE": str(run), "E2E_KILL_LOG": str(tmp_path / "log")}
    ended = ramet(*workspace.train(f"run.root={tmp_path}", "run.name=run"), cwd=tmp_path, **more)
    assert (ended.code, ended.err.splitlines()[-1]) == (
        2, f"error: {run}: No such file or directory; if it was deleted or moved meanwhile, put it back"
    )  # fmt: skip
    assert "Traceback" not in ended.err and not run.exists()


def test_an_evaluation_goes_on_after_a_full_disk_with_what_it_had(ramet, workspace, small_disk, tmp_path):
    out = small_disk.folder / "results.json"
    command = [
        "eval", f"model.path={workspace.model}", "benchmarks=[arithmetic]", "benchmarks.arithmetic.limit=4",
        f"run.root={tmp_path}", "run.name=measured", f"run.out={out}", "evaluate.k=2",
        "rollout_step.system_prompt=never", "rollout.max_response_tokens=8", "data.max_prompt_tokens=64",
        "engine.params.slots=8",
    ]  # fmt: skip
    for point, path in (
        ("result:0", f"{out}.partial.jsonl"),
        ("results:0", f"{small_disk.folder}/results.tasks.jsonl"),
    ):
        more = {"E2E_KILL": point, "E2E_FILL": str(small_disk.ballast), "E2E_KILL_LOG": str(tmp_path / point)}
        ended = ramet(*command, cwd=tmp_path, **more)
        assert (ended.code, ended.err.splitlines()[-1]) == (2, f"error: {path}: {FULL}"), ended.err
        assert "Traceback" not in ended.err and not out.exists()
        command = resume_words(ended.err)
        small_disk.ballast.unlink()
    ended = ramet(*command, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert len(read_results(out)["results"][0]["tasks"]) == 4
