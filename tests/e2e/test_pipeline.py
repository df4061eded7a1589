"""`ramet pipeline`: killed inside every stage and at every border, it ends with the numbers of one that was not."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ramet.config.compose import compose
from ramet.pipeline.export import ExportRecord
from ramet.pipeline.stages import EXPORT, read_pipeline
from ramet.runs.manifest import read_manifest

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "hydra_configs/pipeline").glob("*.yaml"))
INSIDE = {"E2E_KILL_PARENT": "1"}  # the process of a stage, which ends with the pipeline's
STOPS: tuple[tuple[str, dict[str, str]], ...] = (
    ("sft_saved:0", INSIDE),
    ("next_stage:0", {}),
    ("tools:1", INSIDE | {"E2E_SIGNAL": "SIGTERM"}),
    ("update:2", INSIDE),
    ("next_stage:0", {}),
    ("exported:0", INSIDE),
    ("next_stage:0", {}),
    ("result:0", INSIDE),
    ("reporting:0", {}),
)
TRACE = [{"from": "human", "value": "What is 6*7?"}, {"from": "gpt", "value": "<answer>42</answer>"}]
ROLLOUTS = {
    "rollout_step": "e2e_turns", "rollout_step.system_prompt": "never", "tools": ["e2e_digest"],
    "rollout.max_response_tokens": 48, "data.max_prompt_tokens": 32, "engine.params.slots": 8,
    "rollout.max_concurrent": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def pipeline(workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pipeline `tiny` and its data."""
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "traces.jsonl").write_text(json.dumps({"conversations": TRACE}) + "\n")
    tasks = str(workspace.folder / "tasks.jsonl")
    stages: dict[str, dict[str, Any]] = {
        "sft": {
            "job": "sft", "model.path": str(workspace.model), "sft.data": ["traces.jsonl"],
            "rollout_step.system_prompt": "never", "sft.max_tokens": 128,
            "sft.max_microbatch_tokens": 128, "sft.sequences_per_step": 1, "sft.lr": 0.001,
            "sft.trainer.max_steps": 4, "sft.trainer.save_steps": 2, "sft.trainer.logging_steps": 1,
        },
        "rl": {
            "job": "train", "model.path": "${stages.sft.model}", "data.train": [tasks], "rewards": ["e2e_even"],
            "algorithm": "grpo", "rollout.group_size": 4, "train.steps": 3, "train.tasks_per_step": 2,
            "train.minibatches": 1, "train.save_every": 1, "policy.lr": 0.001, **ROLLOUTS,
        },
        "export": {"job": "export", "run": "${stages.rl.run}", "dtype": "float32"},
        "eval": {
            "job": "eval", "model.path": "${stages.export.model}", "benchmarks": ["files"], **ROLLOUTS,
            "benchmarks.files.params": {"paths": [tasks], "question": "prompt", "metrics": {"even": "e2e_even"}},
        },
    }  # fmt: skip
    file = folder / "hydra_configs/pipeline/tiny.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"stages": stages}))  # which is YAML too
    return folder


def words(root: Path) -> list[str]:
    return ["pipeline", "tiny", f"run.root={root}", "run.deterministic=true", "run.seed=11"]


def lines(file: Path, area: str) -> list[dict[str, float]]:
    read = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k.startswith((area, "step")) and not k.endswith(("_s", "_per_s"))}
        for line in read
    ]


def outcome(root: Path) -> dict[str, Any]:
    folder = root / "tiny"
    [measured] = json.loads((folder / "eval/results.json").read_text())["results"]
    return {
        "weights": [
            hashlib.sha256((folder / stage / "model/model.safetensors").read_bytes()).hexdigest()
            for stage in ("sft", "rl", "export")
        ],
        "sft": lines(folder / "sft/metrics.jsonl", "sft/loss"),
        "rl": lines(folder / "rl/metrics.jsonl", "reward/"),
        "eval": measured["metrics"],
    }


def attempts(root: Path, stage: str) -> list[str]:
    return [attempt.status for attempt in read_manifest(root / "tiny" / stage / "manifest.json").attempts]


@pytest.fixture(scope="module")
def undisturbed(ramet, pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed")
    ended = ramet(*words(root), cwd=pipeline)
    assert ended.code == 0, ended.err
    assert [line.split()[0] for line in ended.out.splitlines()[-5:]] == ["sft", "rl", "export", "eval", "report:"]
    return root


def test_killed_inside_each_stage_and_between_them_it_ends_with_the_same_numbers(
    ramet, pipeline: Path, undisturbed: Path, tmp_path: Path
) -> None:
    for number, (point, how) in enumerate(STOPS):
        log = tmp_path / f"log{number}"
        ended = ramet(*words(tmp_path), cwd=pipeline, E2E_KILL=point, E2E_KILL_LOG=str(log), **how)
        assert ended.code == (143 if "E2E_SIGNAL" in how else -9), f"{point} did not strike: {ended.err}"
        assert log.exists()
        if ended.code == 143:  # it was asked to end, and saved itself
            *_, said, last = ended.err.splitlines()
            command = shlex.split(said.removeprefix("continue with: "))
            assert last == "stopped by SIGTERM" and command[command.index("ramet") + 1 :] == words(tmp_path)
    ended = ramet(*words(tmp_path), cwd=pipeline)
    assert ended.code == 0, ended.err
    assert ended.err.count(" is finished: ") == 4
    assert outcome(tmp_path) == outcome(undisturbed)
    assert attempts(tmp_path, "sft") == attempts(tmp_path, "eval") == ["running", "done"]
    assert attempts(tmp_path, "rl") == ["interrupted", "running", "done"]
    assert "Training" in (tmp_path / "tiny/report.html").read_text()


def test_a_finished_stage_is_not_run_with_other_settings(ramet, pipeline: Path, undisturbed: Path) -> None:
    before = outcome(undisturbed)
    for change, problem in {
        "sft.lr=0.1": "stage sft: is finished, and sft.lr was 0.001, is 0.1; ",
        "rl:train.steps=5": f"stage export: {undisturbed}/tiny/export was made of what stage rl had left",
        "eval:rollout.max_response_tokens=40": "stage eval: is finished, and rollout.max_response_tokens was 48",
    }.items():
        ended = ramet(*words(undisturbed), change, cwd=pipeline)
        assert ended.code == 1 and ended.errors[0].startswith(problem), ended.err
    config = undisturbed / "tiny/sft/model/config.json"
    text = config.read_text()
    config.write_text(f"{text}\n")
    ended = ramet(*words(undisturbed), cwd=pipeline)
    assert [problem.partition(":")[0] for problem in ended.errors] == ["stage rl"], ended.err  # its model changed
    config.write_text(text)
    assert outcome(undisturbed) == before
    assert ExportRecord.read(undisturbed / "tiny/export").finished


def test_the_mistakes_of_all_stages_are_reported_at_once_and_nothing_is_written(
    ramet, pipeline: Path, tmp_path: Path
) -> None:
    wrong = ["sft.data=[absent.jsonl]", "rl:data.train=[none.jsonl]"]
    ended = ramet(*words(tmp_path), *wrong, cwd=pipeline)
    assert [problem.partition(":")[0] for problem in ended.errors] == ["stage sft", "stage rl"], ended.err
    assert (ended.code, list(tmp_path.iterdir())) == (1, [])


def test_a_dry_run_prints_the_plans_of_all_stages(ramet, pipeline: Path, tmp_path: Path) -> None:
    sft_run = "export:run=${stages.sft.run}"
    ended = ramet(*words(tmp_path), sft_run, "--dry-run", cwd=pipeline)
    assert ended.code == 0, ended.err
    plans = [line for line in ended.out.splitlines() if line.startswith("stage ")]
    assert [plan.split()[1].strip(":") for plan in plans] == ["sft", "rl", "export", "eval"]
    assert f"ramet export would write {tmp_path}/tiny/export/model/ of {tmp_path}/tiny/sft" in ended.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.stem)
def test_a_pipeline_that_comes_with_ramet_is_found_and_composes(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = read_pipeline(file.stem, [])
    jobs = [stage for stage in pipeline.stages if stage.job != EXPORT]
    resolved = [compose(stage.overrides(pipeline.handed_on), job=stage.job) for stage in jobs]
    assert [job.config.run.name for job in resolved] == [stage.name for stage in jobs]
    assert file.read_text().startswith("# ")
