"""`train.staleness`: rollouts run ahead of the updates, by no more than is allowed, and a run with them resumes."""

from __future__ import annotations

import numpy as np
import pytest

from ramet.config.checks import check
from ramet.config.compose import compose
from ramet.errors import InfraError
from ramet.policy.batching.rows import TokenVersions
from ramet.policy.checkpoint.store import verify
from ramet.train.groups import lag_metrics

AHEAD = ("run.deterministic=false", "tools.fault_tool.params.straggler=/0", "tools.fault_tool.params.sleep_s=0.2")


@pytest.mark.parametrize("staleness", [1, 2])
def test_rollouts_lag_and_no_token_lags_more_than_allowed(workspace, staleness):
    name = f"ahead_{staleness}"
    workspace.train(name, *AHEAD, f"train.staleness={staleness}", "train.async_save=true", steps=5)
    lags = [line["train/version_lag_max"] for line in workspace.metrics(name)]
    assert lags[0] == 0 and max(lags) <= staleness
    assert any(lags[1:]), "the rollouts of no step began before the update of the step before it"
    assert all("train/tis_weight" in line for line in workspace.metrics(name))
    for step in range(1, 6):
        versions = {
            segment["version"]
            for group in workspace.records(name, step)
            for segment in group["segments"]
            if segment.get("version") is not None
        }
        assert versions <= set(range(max(0, step - 1 - staleness), step))
    assert [verify(one) for one in sorted((workspace.runs / name / "checkpoints").glob("step_*"))] == [[], [], []]


def test_a_run_that_ran_ahead_resumes_with_the_next_tasks(workspace):
    workspace.train("whole", *AHEAD, "train.staleness=1", steps=4)
    workspace.train("cut", *AHEAD, "train.staleness=1", steps=2)
    workspace.train("cut", *AHEAD, "train.staleness=1", steps=4)
    assert [line["step"] for line in workspace.metrics("cut")] == [1, 2, 3, 4]
    assert [workspace.seen("cut", step) for step in range(1, 5)] == [
        workspace.seen("whole", step) for step in range(1, 5)
    ]


def test_validation_waits_for_rollouts_under_way_and_counts_apart(workspace):
    more = (f"data.valid=[{workspace.tasks}]", "train.eval_every=1")
    workspace.train("valid", *AHEAD, *more, "train.staleness=1", steps=3)
    lines = workspace.metrics("valid")
    assert [line["rollout/rollouts"] for line in lines] == [12, 12, 12]
    assert all("valid/reward" in line for line in lines)


def test_what_cannot_go_with_it_is_refused(workspace):
    wrong = ("train.staleness=1", "train.tis_cap=null")
    problems = check(compose(workspace.overrides("no", *wrong), job="train"), "train")
    assert "run.deterministic=true: needs train.staleness=0, got 1" in problems
    assert any(text.startswith("train.staleness=1: needs train.tis_cap, which is null") for text in problems)


def test_tokens_that_are_older_than_allowed_stop_the_run(workspace):
    class Row:
        def __init__(self, *versions: int) -> None:
            self.policy_versions = np.array(versions, np.int32)
            self.mask = self.policy_versions >= 0

    versions = TokenVersions.of([Row(-1, 3, 3, 4), Row(-1, 4, 4, 4)])
    assert lag_metrics(versions, 2, version=4, allowed=1) == {
        "train/version_lag_mean": 2 / 6,
        "train/version_lag_max": 1,
    }
    with pytest.raises(InfraError, match="versions 3 to 4 came in for an update of version 4; allowed: at most 0"):
        lag_metrics(versions, 2, version=4, allowed=0)
    with pytest.raises(InfraError, match="versions 3 to 4 came in for an update of version 3"):
        lag_metrics(versions, 2, version=3, allowed=5)
