"""`ramet train -m` with real training: every point is a run of its own, and the same command resumes them."""

from __future__ import annotations

from pathlib import Path

from ramet.runs.manifest import read_manifest


def test_two_points_are_trained_one_after_the_other_and_resumed(ramet, workspace, tmp_path: Path):
    command = workspace.train("-m", "run.root=runs", "run.name=grid", "policy.lr=0.001,0.01", "train.eval_first=false")
    assert ramet(*command, "train.steps=1", cwd=tmp_path).code == 0
    ended = ramet(*command, "train.steps=2", cwd=tmp_path)
    assert ended.code == 0, ended.err
    for number, rate in enumerate(("0.001", "0.01")):
        run = tmp_path / f"runs/grid-{number}"
        assert f"lr: {rate}\n" in (run / "config.yaml").read_text()
        assert [attempt.status for attempt in read_manifest(run / "manifest.json").attempts] == ["done", "done"]
        assert sorted(path.name[:11] for path in (run / "rollouts").iterdir()) == [
            "step_000001",
            "step_000002",
            "valid_00000",
        ]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["grid-0", "grid-1", "sweeps"]
