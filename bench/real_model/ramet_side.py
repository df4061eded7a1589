"""Ramet's sides: `ramet_side.py SETTINGS`, with the engine `torch` or `vllm`, with LoRA or without.

An ordinary training run with the settings of `experiment=quickstart_smollm2` that concern speed and memory. Two things
are the bench's: the tracker, which is called at the end of a step, and the lengths: what a rollout asks of the engine
gets the number of tokens of its turn, and no end token.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["RAMET_PLUGINS"] = "one_call"

import one_call
import torch
import transformers
from shape import LEARNING_RATE, N_QUESTIONS, RESULT_TOKENS, Settings, question, send

import ramet
from ramet.cluster.local import LocalBackend, LocalRanks
from ramet.components.services import RunServices
from ramet.config.compose import compose
from ramet.config.resolved import Resolved
from ramet.engines.protocol import Completion, FirstReport, Request
from ramet.models.torch_setup import set_up_torch
from ramet.policy.checkpoint.store import Checkpoints
from ramet.train.loop import Loop
from ramet.train.preemption import Preemption
from ramet.train.prepare import prepare
from ramet.train.run import TrainRun, TrainState
from ramet.train.specs import policy_spec
from ramet.types import Message

MAX_PROMPT_TOKENS = 192
MICROBATCH_TOKENS = 1024  # 2048 take more than 5 GB
LORA_RANK = 32
WATCHED = "model.layers.0.self_attn.q_proj.weight"


class Steps:
    """A tracker that reports the step's numbers, and blocks the loop until the next step is requested."""

    def __init__(self, ranks: LocalRanks, prompt_tokens: int) -> None:
        self._ranks = ranks
        self._prompt_tokens = prompt_tokens  # of each question
        self._before = self._watched()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        wall = one_call.barrier.elapsed()
        rollouts = metrics["rollout/rollouts"]
        inserted = metrics["rollout/response_tokens_mean"] * rollouts - metrics["rollout/executed_sampled_tokens"]
        work = {
            "rollouts": round(rollouts),
            "prompt_tokens": round(rollouts) * self._prompt_tokens,
            "sampled_tokens": round(metrics["rollout/executed_sampled_tokens"]),
            "inserted_tokens": round(inserted),
            "trained_tokens": round(metrics["train/tokens"]),
            "optimizer_steps": round(metrics["train/optimizer_steps"]),
        }
        phases = {name: value for name, value in metrics.items() if name.startswith("time/")}
        after = self._watched()
        changed = float((after - self._before).abs().max())
        self._before = after
        one_call.barrier.report(
            wall, work, generation_s=metrics["time/rollout_s"], largest_weight_change=changed, phases=phases
        )
        one_call.barrier.wait()

    def _watched(self) -> torch.Tensor:
        """One matrix of the policy, adapters merged."""
        return next(tensor for name, tensor in self._ranks.rank.weights() if name == WATCHED).detach().clone()

    def rewind(self, step: int) -> None:
        """Nothing was logged before."""

    def close(self) -> None:
        """Nothing is open."""


def configuration(settings: Settings, folder: Path) -> Resolved:
    data = folder / "tasks.jsonl"
    rows = [{"id": str(i), "prompt": question(i), "answer": "1"} for i in range(N_QUESTIONS)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    n = settings.questions * settings.rollouts
    return compose(
        [
            "algorithm=grpo",
            f"engine={'vllm' if 'vllm' in settings.side else 'torch'}",
            f"engine.params.slots={max(n, 4)}",
            "rollout_step=one_call",
            "rollout_step.system_prompt=never",
            "tools=[counter]",
            "rewards=[by_position]",
            f"model.path={settings.model}",
            f"model.dtype={settings.precision}",
            f"data.train=[{data}]",
            f"data.max_prompt_tokens={MAX_PROMPT_TOKENS}",
            f"run.threads={settings.threads}",
            f"rollout.group_size={settings.rollouts}",
            f"rollout.max_response_tokens={settings.tokens + RESULT_TOKENS}",
            f"train.tasks_per_step={settings.questions}",
            "train.steps=1000000",
            "train.minibatches=1",
            "train.save_every=1000000",
            f"policy.lr={LEARNING_RATE}",
            f"policy.max_microbatch_tokens={MICROBATCH_TOKENS}",
            f"policy.lora_rank={LORA_RANK if 'lora' in settings.side else 0}",
        ],
        job="train",
    )


def force_lengths(engine: Any, settings: Settings) -> None:
    """Let every request sample as many tokens as its turn has. A request's id ends with its turn."""
    generate = engine.generate

    async def forced(request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        n = settings.turn_tokens(int(request.id.rpartition("/")[2]), calls=one_call.barrier.tool_s is not None)
        sampling = replace(request.sampling, max_tokens=n, stop_token_ids=())
        completion: Completion = await generate(replace(request, sampling=sampling), on_first)
        return completion

    engine.generate = forced


async def serve(settings: Settings) -> None:
    folder = Path(settings.work) / settings.side
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "rollouts").mkdir(parents=True)
    resolved = configuration(settings, folder)
    config, prepared = resolved.config, prepare(resolved)
    set_up_torch(config.run)
    policy = policy_spec(config, prepared.components, prepared.total_steps)
    services = RunServices(folder=folder / "services", seed=config.run.seed)
    backend = await LocalBackend.start(config, policy, components=prepared.components, services=services)
    force_lengths(backend.rollouts.engine, settings)
    prompt = backend.rollouts.encoder.prompt([Message(role="user", content=question(0))])
    loop = Loop(
        TrainRun(
            config=config,
            folder=folder,
            prepared=prepared,
            backend=backend,
            policy=policy,
            prefixes=None,
            critic=None,
            checkpoints=Checkpoints(folder / "checkpoints", keep=1),
            tracker=Steps(backend.policy, len(prompt)),
            state=TrainState(data_fingerprint=""),
            preemption=Preemption(grace_s=0),
        )
    )
    send({"ramet": ramet.__version__, "transformers": transformers.__version__, "torch": torch.__version__})
    one_call.barrier.wait()
    await loop.run()


if __name__ == "__main__":  # vLLM's processes import this file
    asyncio.run(serve(Settings.read()))
