"""F15: a resume meets checkpoints that were damaged after they were written."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ramet.policy.checkpoint import store as checkpoint
from ramet.policy.checkpoint.store import MANIFEST, verify


def truncate(folder: Path) -> None:
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:1000])


def flip(folder: Path) -> None:
    file = folder / "rank_00000.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncate, "__0_0.distcp: 1000 bytes, the manifest says "),
    "flipped byte": (flip, "rank_00000.pt: its content does not match the manifest's hash"),
    "missing rank file": (lambda folder: (folder / "rank_00000.pt").unlink(), "rank_00000.pt: missing"),
    "empty manifest": (lambda folder: (folder / MANIFEST).write_text(""), "MANIFEST.json: not a manifest: "),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "MANIFEST.json: not a manifest: FileNotFoundError"),
}


@pytest.fixture(scope="module")
def whole(workspace) -> Path:
    """A run of three steps, all of which are saved."""
    return workspace.train("whole", steps=3)


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("__0_0.distcp", ".metadata", "rank_00000.pt")]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_skipped_with_its_reason_and_written_anew_from_the_one_before(
    workspace, whole, caplog, damage
):
    harm, reason = DAMAGE[damage]
    name = f"damaged_{damage.replace(' ', '_')}"
    newest = shutil.copytree(whole, workspace.runs / name) / "checkpoints/step_000003"
    harm(newest)
    with caplog.at_level(logging.INFO, logger="ramet"):
        workspace.train(name, steps=3)
    [skipped] = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert skipped.startswith("checkpoint step_000003 skipped: ") and reason in skipped
    assert "resumed after step 2" in caplog.text
    assert verify(newest) == []
    assert contents(newest) == contents(whole / "checkpoints/step_000003")


def test_if_all_are_damaged_the_run_begins_anew_and_every_reason_is_told(workspace, whole, caplog):
    run = shutil.copytree(whole, workspace.runs / "all_damaged")
    for folder in (run / "checkpoints").iterdir():
        truncate(folder)
    workspace.train("all_damaged", steps=3)
    skipped = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert [text.split()[1] for text in skipped] == ["step_000003", "step_000002", "step_000001"]
    assert [line["step"] for line in workspace.metrics("all_damaged")] == [1, 2, 3]


def test_a_checkpoint_of_another_world_size_goes_on_with_the_same_weights(workspace, whole, caplog):
    newest = shutil.copytree(whole, workspace.runs / "ranks") / "checkpoints/step_000003"
    state = torch.load(newest / "rank_00000.pt", weights_only=True)
    torch.save({**state, "world_size": 2}, newest / "rank_00000.pt")
    (newest / MANIFEST).unlink()
    checkpoint._seal(newest)
    with caplog.at_level(logging.INFO, logger="ramet"):
        workspace.train("ranks", steps=4)
    assert "written by 2 policy ranks" in caplog.text
    workspace.train("one", steps=4)
    assert (
        contents(workspace.runs / "ranks/checkpoints/step_000004")[:1]
        == contents(workspace.runs / "one/checkpoints/step_000004")[:1]
    )
