"""A seed's SFT checkpoint, and a training run from it with one arm: configuration, measuring, numbers.

An arm is a name and the keys in which its runs differ from the others'.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ramet import ConfigError, Task
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
from ramet_benchmarks.branching.kinds import TaskKind, write
from ramet_benchmarks.branching.settings import GROUP, SftPhase
from ramet_benchmarks.branching.tools import give_tools

SAMPLES = 2  # rollouts of a problem measured at temperature 1
SETTING = "setting.txt"  # next to the data of a seed

KEPT = (  # of a step
    "reward/mean", "group/no_signal_share", "rollout/rollouts", "rollout/executed_tool_calls",
    "rollout/logical_tool_calls", "rollout/executed_sampled_tokens", "rollout/forks_per_group",
    "rollout/effective_roots", "rollout/entropy_first_turn", "rollout/entropy_after_tool",
    "rollout/entropy_change_p10", "rollout/entropy_change_p50", "rollout/entropy_change_p90",
    "rollout/entropy_rose_share", "rollout/response_tokens_forked_mean", "rollout/response_tokens_unforked_mean",
    "train/entropy", "time/step_s",
)  # fmt: skip


def prepare(work: Path, kind: TaskKind, seed: int) -> Path:
    """Make the folder of this seed, once, with the model of its last phase of SFT. What an interrupted one left is
    removed. Raises `ConfigError` where arms are finished and their model is gone, or the folder is not of this command.
    """
    folder = work / kind.name / f"seed{seed}"
    last = folder / kind.setting.phases[-1].name
    if (last / "model/config.json").is_file():
        check_setting(folder, kind)
        return folder
    if finished := sorted(folder.glob("*.json")):
        raise ConfigError(f"{finished[0]} is of a model that is gone ({last / 'model'}): choose another --work")
    if folder.exists():
        if any(folder.iterdir()) and not (folder / SETTING).is_file():
            raise ConfigError(f"{folder} was not made by this command: choose another --work")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / SETTING).write_text(kind.setting.values, encoding="utf-8")
    write(kind, folder / "data", seed)
    model = kind.setting.model(folder, seed)
    for phase in kind.setting.phases:
        model = sft.run(compose(_sft_overrides(kind, folder, model, phase, seed), job="sft")).model
        shutil.rmtree(folder / phase.name / "checkpoints")
    return folder


def check_setting(folder: Path, kind: TaskKind) -> None:
    """Raise `ConfigError` where the folder of a seed was made with another setting."""
    kept = (folder / SETTING).read_text(encoding="utf-8")
    if kept != kind.setting.values:
        raise ConfigError(
            f"{folder} is of another setting: remove it, or choose another --work\n{kept}\n{kind.setting.values}"
        )


def run(
    work: Path, kind: TaskKind, arm: str, keys: Sequence[str], seed: int, made_by: Mapping[str, str | None]
) -> dict[str, Any] | None:
    """Train and measure one arm unless it is finished; return its numbers, with `made_by`.

    None: another process runs it. Raises `ConfigError` where what is finished had another setting or other keys.
    """
    give_tools()
    done = work / kind.name / f"seed{seed}" / f"{arm}.json"
    with locked(work / f"{kind.name}-{seed}-{arm}.lock", wait=False) as is_held:
        if not is_held:
            return None
        if done.is_file():
            check_setting(done.parent, kind)
            numbers: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
            if numbers.get("keys", list(keys)) != list(keys):
                raise ConfigError(f"{done}: was run with {numbers['keys']}, now {list(keys)}; choose another --work")
            return numbers
        with locked(work / f"{kind.name}-{seed}.lock", wait=True):
            folder = prepare(work, kind, seed)
        numbers = {**made_by, **train(folder, kind, arm, keys, seed)}
        write_json(done, numbers)
    accuracy = f"greedy {numbers['greedy']:.3f}, sampled {numbers['sampled']:.3f}"
    print(f"{kind.name} seed {seed} {arm}: {accuracy}, {numbers['wall_s']:.0f} s", flush=True)
    return numbers


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Give whether this process holds the lock; it ends with the block, or with the process."""
    import fcntl  # no run begins on platforms without it

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def train(folder: Path, kind: TaskKind, arm: str, keys: Sequence[str], seed: int) -> dict[str, Any]:
    """Train from the seed's checkpoint, measure, and return all numbers. What an interrupted run left is removed."""
    run = folder / f"arm_{arm}"  # whatever a policy is called, data and SFT stay
    shutil.rmtree(run, ignore_errors=True)
    overrides = train_overrides(kind, folder, arm, keys, seed)
    wall, cpu, load = time.perf_counter(), time.process_time(), os.getloadavg()[0]
    training.run(compose(overrides, job="train"))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    device = torch.cuda.get_device_name() if torch.cuda.max_memory_allocated() else platform.machine()
    numbers = {
        "device": f"{device}, torch {torch.__version__}",
        "kind": kind.name, "arm": arm, "keys": list(keys), "seed": seed, "steps": kind.setting.steps, "load": load,
        "wall_s": round(wall, 2), "cpu_s": round(cpu, 2),
        **curves(run),
        **measure([*overrides, f"model.path={run / 'model'}"], folder / "data/test.jsonl"),
    }  # fmt: skip
    for left in ("checkpoints", "model"):
        shutil.rmtree(run / left)
    return numbers


def curves(run: Path) -> dict[str, Any]:
    """Return `per_step`, metric -> one value a step (None: absent), and `valid`, [steps done, sampled accuracy]."""
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
    """Return the accuracy on the held-out problems: greedy, and of `SAMPLES` rollouts at temperature 1."""
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


def _sft_overrides(kind: TaskKind, folder: Path, model: Path, phase: SftPhase, seed: int) -> list[str]:
    return [
        f"model.path={model}", f"sft.data=[{folder / 'data' / f'{phase.name}.jsonl'}]", f"run.root={folder}",
        f"run.name={phase.name}", f"run.seed={seed}", "rollout_step.system_prompt=never", kind.tool,
        f"sft.epochs={phase.epochs}", f"sft.lr={phase.lr}", "sft.trainer.adam_beta2=0.98",
        "sft.trainer.save_steps=100000", "trackers=[jsonl]", *kind.setting.shared_keys, *kind.setting.sft_keys,
    ]  # fmt: skip


def train_overrides(kind: TaskKind, folder: Path, arm: str, keys: Sequence[str], seed: int) -> list[str]:
    """Return the keys of an arm's training. What its preset sets and the comparison holds equal is set again here, the
    number of updates above all.
    """
    setting = kind.setting
    rollouts = GROUP * setting.tasks
    return [
        f"model.path={folder / setting.phases[-1].name / 'model'}", f"data.train=[{folder / 'data/train.jsonl'}]",
        f"data.valid=[{folder / 'data/valid.jsonl'}]", f"data.max_prompt_tokens={kind.max_prompt_tokens}",
        f"run.root={folder}", f"run.name=arm_{arm}", f"run.seed={seed}",
        "rollout_step.system_prompt=never", kind.tool, f"rewards=[{kind.reward}]",
        f"rollout.group_size={GROUP}", "rollout.max_turns=8", "rollout.max_tool_calls=6",
        f"rollout.max_response_tokens={kind.max_response_tokens}", f"rollout.max_concurrent={rollouts}",
        "engine=torch", f"engine.params.slots={rollouts}",
        f"train.steps={setting.steps}", f"train.tasks_per_step={setting.tasks}", "train.budget=uniform",
        "train.minibatches=2", "train.epochs=1", "train.old_logprobs=engine", "train.kl_coef=0.0",
        "train.entropy_coef=0.0",
        "rollout.first_tokens=20", "policy_loss.params.dual_clip=3.0",  # the same in all arms: presets differ in it
        f"train.eval_every={setting.every}", "train.eval_first=true", "train.eval_sampling.temperature=1.0",
        "train.save_every=100000", "policy.beta2=0.95", "policy.weight_decay=0.0", "trackers=[jsonl]",
        *setting.shared_keys, *setting.train_keys, *keys,
    ]  # fmt: skip


def write_json(path: Path, body: dict[str, Any]) -> None:
    """Write a file that appears complete or not at all."""
    torn = path.with_suffix(".torn")
    torn.write_text(json.dumps(body) + "\n", encoding="utf-8")
    torn.replace(path)
