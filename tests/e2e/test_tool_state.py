"""A run whose tool keeps variables: forks begin with their parent's, and see nothing of what the others do later."""

from __future__ import annotations

import json
from pathlib import Path


def test_forks_have_the_variables_of_their_fork_point_and_of_nobody_else(ramet, workspace, tmp_path: Path) -> None:
    log = tmp_path / "seen.jsonl"
    ended = ramet(
        *workspace.train(
            "run.name=kept", "rollout_step=e2e_adding", "tools=[python]", "rewards=[e2e_trail]", "train.steps=3",
            "tools.python.params.state=rollout", "tools.python.params.preload=[]", "train.eval_first=false",
            "tools.python.params.slots=2", "run.deterministic=false", "train.eval_every=0", "train.save_every=9",
        ),
        cwd=tmp_path, E2E_STATE_LOG=str(log), RAMET_PLUGINS="e2e_plugin,e2e_state_plugin",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    seen = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(seen) == 3 * 3 * 8  # steps, tasks, rollouts
    forks = [one for one in seen if one["fork_turn"]]
    assert len(forks) >= 9 and {one["fork_turn"] for one in forks} - {0}
    for one in seen:
        trail = [f"{turn}:{said}" for turn, said in one["turns"]]
        assert one["calls"] == [" ".join(trail[: n + 1]) for n in range(len(trail))], one["id"]
    [isolation] = (tmp_path / "runs" / "kept" / "services" / "tools.python").glob("isolation-*.json")
    assert f"python tool: isolation level {json.loads(isolation.read_text())['level']} (" in ended.err
