"""One seed's SFT checkpoint, and one training run from it with one arm: configuration, measuring, numbers."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from settings import GROUP, Phase
from tasks import TaskKind, write

from ramet import Task
from ramet.cluster.local import LocalRollouts
from ramet.components.build import Components
from ramet.components.services import RunServices
from ramet.config.compose import compose
from ramet.config.schema import Config
from ramet.helpers import from_jsonl
from ramet.models.loading import build_encoder
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.sft import job as sft
from ramet.tracking.jsonl import read_metrics
from ramet.train import training

SAMPLES = 2  # rollouts of a problem measured at temperature 1
SETTING = "setting.txt"  # beside the data of a seed

ARMS = {
    "none": ["algorithm=grpo"],
    "none6": ["algorithm=grpo", "rollout.group_size=6"],  # as many tool calls as the arms with forks
    "random": ["algorithm=grpo", "branch_policy=random"],
    "shuffled": ["algorithm=grpo", "branch_policy=shuffled", "branch_policy.params.policy=arpo"],
    "arpo": ["algorithm=grpo", "branch_policy=arpo"],
    "arpo_tau": ["algorithm=grpo", "branch_policy=arpo", "branch_policy.params.tau=0.52"],
    "aepo": ["algorithm=aepo"],
    "arpo_release": ["algorithm=arpo_release"],
    "aepo_release": ["algorithm=aepo_release"],
    "value_guided": ["algorithm=grpo", "branch_policy=value_guided"],
}
KEPT = (  # of a step
    "reward/mean", "group/no_signal_share", "rollout/rollouts", "rollout/executed_tool_calls",
    "rollout/logical_tool_calls", "rollout/executed_sampled_tokens", "rollout/forks_per_group",
    "rollout/effective_roots", "rollout/entropy_first_turn", "rollout/entropy_after_tool",
    "rollout/entropy_change_p10", "rollout/entropy_change_p50", "rollout/entropy_change_p90",
    "rollout/entropy_rose_share", "rollout/response_tokens_forked_mean", "rollout/response_tokens_unforked_mean",
    "train/entropy", "time/step_s",
)  # fmt: skip


def prepare(work: Path, kind: TaskKind, seed: int) -> Path:
    """The folder of this seed, with the model of its last phase of SFT; made once."""
    folder = work / kind.name / f"seed{seed}"
    last = folder / kind.setting.phases[-1].name
    if (last / "model/config.json").is_file():
        check_setting(folder, kind)
        return folder
    if folder.exists():
        shutil.rmtree(folder)
    write(kind, folder / "data", seed)
    (folder / SETTING).write_text(kind.setting.values, encoding="utf-8")
    model = kind.setting.model(folder, seed)
    for phase in kind.setting.phases:
        model = sft.run(compose(_sft_overrides(kind, folder, model, phase, seed), job="sft")).model
        shutil.rmtree(folder / phase.name / "checkpoints")
    return folder


def check_setting(folder: Path, kind: TaskKind) -> None:
    """End the program where the folder of a seed was made with another setting."""
    kept = (folder / SETTING).read_text(encoding="utf-8")
    if kept != kind.setting.values:
        sys.exit(f"{folder} is of another setting: remove it, or choose another --work\n{kept}\n{kind.setting.values}")


def train(folder: Path, kind: TaskKind, arm: str, seed: int) -> dict[str, Any]:
    """Train from the seed's checkpoint, measure, and give all numbers. What an interrupted run left is removed."""
    shutil.rmtree(folder / arm, ignore_errors=True)
    overrides = _train_overrides(kind, folder, arm, seed)
    wall, cpu, load = time.perf_counter(), time.process_time(), os.getloadavg()[0]
    training.run(compose(overrides, job="train"))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    device = torch.cuda.get_device_name() if torch.cuda.max_memory_allocated() else platform.machine()
    numbers = {
        "device": f"{device}, torch {torch.__version__}",
        "kind": kind.name, "arm": arm, "seed": seed, "steps": kind.setting.steps, "load": load,
        "wall_s": round(wall, 2), "cpu_s": round(cpu, 2),
        **curves(folder / arm),
        **measure([*overrides, f"model.path={folder / arm / 'model'}"], folder / "data/test.jsonl"),
    }  # fmt: skip
    for left in ("checkpoints", "model"):
        shutil.rmtree(folder / arm / left)
    return numbers


def curves(run: Path) -> dict[str, Any]:
    """`per_step`: metric -> one value a step (None: it had none). `valid`: [steps done, sampled accuracy]."""
    by_step: dict[int, dict[str, float]] = {}
    for line in read_metrics(run / "metrics.jsonl"):
        by_step.setdefault(line.step, {}).update(line.metrics)
    trained = [by_step[step] for step in sorted(by_step) if "rollout/rollouts" in by_step[step]]
    per_step = {
        name: [round(step[name], 4) if name in step else None for step in trained]
        for name in KEPT
        if any(name in step for step in trained)
    }
    valid = [[step, round(m["valid/reward"], 4)] for step, m in sorted(by_step.items()) if "valid/reward" in m]
    return {"per_step": per_step, "valid": valid}


def measure(overrides: list[str], tests: Path) -> dict[str, float]:
    """Accuracy on the held-out problems: greedy, and of `SAMPLES` rollouts at temperature 1."""
    config = compose(overrides, job="train").config
    tasks = list(from_jsonl(tests, question="prompt"))
    return asyncio.run(_measure(config, tasks))


async def _measure(config: Config, tasks: list[Task]) -> dict[str, float]:
    components = Components(config)
    services = RunServices(folder=Path(config.run.root) / "services", seed=config.run.seed)
    rollouts = await LocalRollouts.open(config, build_encoder(config), components=components, services=services)
    try:
        found: dict[str, float] = {}
        for name, size, temperature in (("greedy", 1, 0.0), ("sampled", SAMPLES, 1.0)):
            plan = RolloutPlan(
                group_size=size, temperature=temperature, top_p=1.0, top_k=0, branch=False, salt=f"measure:{name}"
            )
            groups = await rollouts.run(RolloutRequest(tasks=tasks, step=0, plan=plan))
            scored = [await components.scorer.score(group) for group in groups]
            rewards = [one.reward for group in scored for one in group.rollouts]
            if None in rewards:
                raise RuntimeError("a measured rollout was masked")
            calls = [len(rollout.tool_calls) for group in groups for rollout in group.rollouts]
            found |= {name: fmean(r or 0.0 for r in rewards), f"{name}_calls": fmean(calls)}
        return found
    finally:
        await rollouts.close()
        await components.scorer.aclose()


def _sft_overrides(kind: TaskKind, folder: Path, model: Path, phase: Phase, seed: int) -> list[str]:
    return [
        f"model.path={model}", f"sft.data=[{folder / 'data' / f'{phase.name}.jsonl'}]", f"run.root={folder}",
        f"run.name={phase.name}", f"run.seed={seed}", "rollout_step.system_prompt=never", kind.tool,
        f"sft.epochs={phase.epochs}", f"sft.lr={phase.lr}", "sft.trainer.adam_beta2=0.98",
        "sft.trainer.save_steps=100000", "trackers=[jsonl]", *kind.setting.shared_keys, *kind.setting.sft_keys,
    ]  # fmt: skip


def _train_overrides(kind: TaskKind, folder: Path, arm: str, seed: int) -> list[str]:
    """What an arm's preset sets and the comparison holds equal is set again here, the number of updates above all."""
    setting = kind.setting
    rollouts = GROUP * setting.tasks
    return [
        f"model.path={folder / setting.phases[-1].name / 'model'}", f"data.train=[{folder / 'data/train.jsonl'}]",
        f"data.valid=[{folder / 'data/valid.jsonl'}]", f"data.max_prompt_tokens={kind.max_prompt_tokens}",
        f"run.root={folder}", f"run.name={arm}", f"run.seed={seed}",
        "rollout_step.system_prompt=never", kind.tool, f"rewards=[{kind.reward}]",
        f"rollout.group_size={GROUP}", "rollout.max_turns=8", "rollout.max_tool_calls=6",
        f"rollout.max_response_tokens={kind.max_response_tokens}", f"rollout.max_concurrent={rollouts}",
        "engine=torch", f"engine.params.slots={rollouts}",
        f"train.steps={setting.steps}", f"train.tasks_per_step={setting.tasks}", "train.minibatches=2",
        "train.epochs=1", "train.old_logprobs=engine", "train.kl_coef=0.0", "train.entropy_coef=0.0",
        "rollout.first_tokens=20", "policy_loss.params.dual_clip=3.0",  # the same in all arms: presets differ in it
        f"train.eval_every={setting.every}", "train.eval_first=true", "train.eval_sampling.temperature=1.0",
        "train.save_every=100000", "policy.beta2=0.95", "policy.weight_decay=0.0", "trackers=[jsonl]",
        *setting.shared_keys, *setting.train_keys, *ARMS[arm],
    ]  # fmt: skip


def write_json(path: Path, body: dict[str, Any]) -> None:
    """Whole or not at all."""
    torn = path.with_suffix(".torn")
    torn.write_text(json.dumps(body) + "\n", encoding="utf-8")
    torn.replace(path)
