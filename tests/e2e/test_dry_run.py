"""`--dry-run`: all checks, a plan that is true, and not a byte written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PARAMETERS = "29,536"  # of the workspace's model
PLACEMENT = "placement cluster local: engine torch and the policy in this process, on cpu"


def everything(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Path -> kind, size and time of change of everything in a folder."""
    found = {path: path.lstat() for path in [folder, *folder.rglob("*")]}
    return {str(path): (stat.st_mode, stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    talk = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "<answer>2</answer>"}]
    path.write_text((json.dumps({"conversations": talk}) + "\n") * 4)
    return path


def test_a_training_says_what_it_would_do_and_does_nothing(ramet, workspace, tmp_path: Path):
    command = workspace.train("run.root=runs", "run.name=new", "data.limits.train=5")
    before = everything(tmp_path), everything(workspace.folder)
    ended = ramet(*command, "--dry-run", cwd=tmp_path)
    assert (everything(tmp_path), everything(workspace.folder)) == before
    assert ended.code == 0, ended.err
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    memory = slice(lines.index(PLACEMENT) + 1, lines.index("would write runs/new/LOCK"))
    table = "".join(lines[memory])
    assert table.startswith("memory policy and engine, GiB ") and "all processes together" in table
    del lines[memory]
    assert lines == [
        "ramet train would do this, and has done nothing:",
        "directory runs/new (new)",
        f"model {workspace.model} ({PARAMETERS} parameters, float32)",
        f"tasks 5 of 5 from {workspace.folder}/tasks.jsonl",
        "validation 2 tasks, 1 rollout each, before the first step and every 2 steps",
        "steps 4, each with 3 tasks x 8 rollouts = 24 rollouts and 2 optimiser steps",
        "tokens of a sequence: at most 32 in the prompt and 96 in the response",
        "of all responses: at most 2,304 a step, 9,216 in the run",
        "of a policy rank: at most 3,072 in one pass over a step",
        "algorithm advantage grpo, loss ppo_clip, branch policy arpo, rollout step e2e_turns",
        "engine torch; measured on two CPU cores, with 135 million parameters and 24 rollouts at once: torch 115 "
        "tokens/s, vllm 121, with 2 GB more memory",
        "shared prefixes computed once in steps with under 85% unique tokens; 78% of the tokens of 8 rollouts of full "
        "length without forks are unique",
        "old logprobs computed before the update, by one more forward pass a step, since its 2 optimiser steps change "
        "the policy",
        "rewards e2e_even",
        "sources data source train valid e2e_even",
        "tasks 5 0 5",
        "valid 0 2 2",
        "tools e2e_digest",
        PLACEMENT,
        "would write runs/new/LOCK",
        *(f"runs/new/{name}" for name in ("config.yaml", "overrides.txt", "manifest.json", "metrics.jsonl", "run.log")),
        "runs/new/rollouts/step_000001.jsonl.gz … step_000004.jsonl.gz",
        "runs/new/checkpoints/step_…/ (every 2 steps and the last, 2 kept)",
        "runs/new/model/",
    ]


def test_the_files_of_the_plan_are_those_of_the_run(ramet, workspace, tmp_path: Path):
    never = ("train.eval_every=0", "train.eval_first=false")
    command = workspace.train("run.root=runs", "run.name=short", "train.steps=1", *never)
    plan = ramet(*command, "--dry-run", cwd=tmp_path).out
    planned = plan.partition("would write  ")[2].splitlines()
    ran = ramet(*command, cwd=tmp_path)
    assert ran.code == 0
    assert "2 tasks, never measured: train.eval_every=0" in plan
    assert "data.valid is never measured, since train.eval_every=0" in ran.out + ran.err
    names = {line.split("/")[2].split()[0] for line in planned}
    assert {path.name for path in (tmp_path / "runs/short").iterdir()} == names
    before = everything(tmp_path)
    ended = ramet(*command, "train.steps=2", "--dry-run", cwd=tmp_path)
    assert "runs/short (continues with its files)" in ended.out
    refused = ramet(*command, "run.seed=12", "--dry-run", cwd=tmp_path)
    assert refused.code == 1 and "run.seed was 11, is 12" in refused.err
    assert everything(tmp_path) == before


def test_fine_tuning_and_evaluation_have_a_dry_run_too(ramet, workspace, traces: Path, tmp_path: Path):
    before = everything(tmp_path)
    common = [f"model.path={workspace.model}", "run.name=new", "--dry-run"]
    ended = ramet("sft", *common, f"sft.data=[{traces}]", "sft.trainer.max_steps=3", "run.out=trained", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert f"rows 4 from {traces}" in " ".join(ended.out.split())
    assert "steps 3, each of 16 sequences" in " ".join(ended.out.split())
    assert [line.strip() for line in ended.out.splitlines()][-3:] == [
        "runs/new/sft_loss.png", "runs/new/sft.json", "trained/",
    ]  # fmt: skip
    measure = ["benchmarks=[arithmetic]", "benchmarks.arithmetic.limit=3", "evaluate.k=2", "data.max_prompt_tokens=32"]
    ended = ramet("eval", *common, *measure, "rollout.max_response_tokens=8", cwd=tmp_path)
    assert ended.code == 0, ended.err
    said = " ".join(ended.out.split())
    assert "benchmarks arithmetic (3 tasks)" in said and "rollouts 2 of each task = 6" in said
    assert ended.out.split()[-3:] == [
        f"runs/new/results{end}" for end in (".json", ".tasks.jsonl", ".rollouts.jsonl.gz")
    ]
    assert everything(tmp_path) == before


def test_a_dry_run_finds_every_problem_that_the_run_would(ramet, workspace, tmp_path: Path):
    broken = ["data.train=[nowhere.jsonl]", "train.save_every=0", "model.path=nomodel", "--dry-run"]
    ended = ramet(*workspace.train(f"run.root={tmp_path}"), *broken, cwd=tmp_path)
    assert ended.code == 1
    assert [error.partition(":")[0] for error in ended.errors] == [
        "model.path", "nowhere.jsonl", "train.save_every=0",
    ]  # fmt: skip
    (tmp_path / "file").touch()
    ended = ramet(*workspace.train("run.root=file", "run.name=x"), "--dry-run", cwd=tmp_path)
    assert ended.code == 1 and "run.root: 'file/x' cannot be written" in ended.err


def test_a_dry_run_plans_for_another_machine_and_refuses_what_does_not_fit_there(ramet, workspace, tmp_path: Path):
    command = [*workspace.train(f"run.root={tmp_path}", "run.deterministic=false"), "--dry-run"]
    ended = ramet(*command, "--on", "1x80GiB", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "cuda 0: policy and engine, GiB " in ended.out and "of 80.0 GiB" in ended.out
    ended = ramet(*command, "--on", "1x8MiB", cwd=tmp_path)
    assert ended.code == 1
    (problem,) = ended.errors
    assert problem.startswith("memory: cuda 0 (policy and engine) would need") and "what helps most" in problem
    ended = ramet(*command, "--on", "80", cwd=tmp_path)
    assert ended.errors == [
        "--on: '80' is not a machine; allowed: DEVICESxMEMORY or NODESxDEVICESxMEMORY, such as 8x80GiB or 2x8x80GiB "
        "(GiB, GB, MiB), and a GPU in the memory's place, such as 8xH100 (A100, H100, H200, B200, RTX4090)"
    ]
    ended = ramet(*command[:-1], "--on", "1x80GiB", cwd=tmp_path)
    assert ended.errors == ["--on: a machine is named for a dry run of one configuration; add --dry-run, without -m"]
    ended = ramet(*command[:-1], "--tool-s", "2", cwd=tmp_path)
    assert ended.errors == [
        "--response-tokens, --tool-s: say what `ramet train --dry-run` counts on; add --dry-run, without -m"
    ]
