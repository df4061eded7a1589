"""Ramet's side: `ramet_side.py texts|measure|fit|serve FOLDER`.

An ordinary training run: composed configuration, the step `tags`, the engine `torch`, GRPO, records on disk. Only its
tracker is the bench's: it is called at the end of every step.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

os.environ |= {"RAMET_PLUGINS": "search_plugin", "RAMET_BLOCK_PLUGINS": "tools_bing"}  # both have a tool `search`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import search_plugin
import torch
import transformers
from fit import fit
from protocol import send
from task import FILL, GROUP_SIZE, LEARNING_RATE, MAX_COMPLETION, N_QUESTIONS, TASKS, Example, Lengths, drawn, question
from transformers import PreTrainedTokenizerFast
from words import CHAT_TEMPLATE

import ramet
from ramet import user_prompt
from ramet.cluster.local import LocalBackend, LocalRanks, LocalRollouts
from ramet.components.services import RunServices
from ramet.components.toolbox import open_tools
from ramet.config.compose import compose
from ramet.config.schema import SystemPrompt
from ramet.models.encoder import Encoder
from ramet.models.loading import build_encoder
from ramet.models.torch_setup import set_up_torch
from ramet.policy.checkpoint.store import Checkpoints
from ramet.rollout.config import TagsConfig
from ramet.rollout.prompts import messages_of
from ramet.rollout.steps.tags import Tags
from ramet.train.loop import Loop
from ramet.train.preemption import Preemption
from ramet.train.prepare import prepare
from ramet.train.run import TrainRun, TrainState
from ramet.train.specs import policy_spec
from ramet.types import Task

STEP = Tags(TagsConfig())


def call(fill: int, draw: str = "000") -> str:
    return f"<think>{draw}{FILL * (fill + 1)}</think><search>capital</search>"


def answer(fill: int) -> str:
    return f"<think>{FILL * (fill + 1)}</think><answer>42</answer>"


def result(fill: int) -> str:
    return search_plugin.RESULT + FILL * fill


def task(number: int, fill: int) -> Task:
    return Task(id=str(number), prompt=user_prompt(question(number, fill)))


def example(encoder: Encoder, number: int, fill: Lengths, draw: str = "000") -> Example:
    system = STEP.system_prompt([search_plugin.SCHEMA])
    prompt = encoder.prompt(messages_of(task(number, fill.prompt), system, SystemPrompt.AUTO))
    inserted = [i for part in STEP.result(result(fill.result)) for i in encoder.insert(part)]
    return Example(
        list(prompt), list(encoder.markup(call(fill.call, draw))), inserted, list(encoder.markup(answer(fill.answer)))
    )


def tokenizer_of(work: Path) -> PreTrainedTokenizerFast:
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(work / "trl_tokenizer")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


class Steps:
    """A tracker that hands over the step's numbers, and blocks the loop until the next step is requested."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        n = metrics["rollout/rollouts"]
        work = {
            "rollouts": n,
            "prompt_tokens": self.prompt_tokens * n,
            "response_tokens": round(metrics["rollout/response_tokens_mean"] * n),
            "sampled_tokens": metrics["rollout/executed_sampled_tokens"],
            "trained_tokens": metrics["train/tokens"],
        }
        phases = {name: value for name, value in metrics.items() if name.startswith("time/")}
        search_plugin.barrier.report(work, phases)
        search_plugin.barrier.wait()

    def rewind(self, step: int) -> None:
        """Nothing was logged before."""

    def close(self) -> None:
        """Nothing is open."""


def serve(work: Path) -> None:
    fill = Lengths.read(work / "ramet_fill.json")
    search_plugin.Search.fill = fill.result
    rows = [{"id": str(i), "prompt": question(i, fill.prompt), "answer": "42"} for i in range(N_QUESTIONS)]
    data = work / "tasks.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    resolved = compose(
        [
            "algorithm=grpo",
            "engine=torch",
            "tools=[search]",
            "rewards=[by_position]",
            f"model.path={work / 'ramet_model'}",
            f"data.train=[{data}]",
            "run.threads=1",
            "data.max_prompt_tokens=256",
            f"rollout.group_size={GROUP_SIZE}",
            f"rollout.max_response_tokens={MAX_COMPLETION}",
            f"train.tasks_per_step={TASKS}",
            "train.steps=1000000",
            "train.minibatches=1",  # as TRL's step
            "train.save_every=1000000",
            f"policy.lr={LEARNING_RATE}",
        ],
        job="train",
    )
    config, prepared = resolved.config, prepare(resolved)
    set_up_torch(config.run)
    folder = work / "ramet_run"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "rollouts").mkdir(parents=True)
    services = RunServices(folder=folder / "services", seed=config.run.seed)
    rollouts = LocalRollouts(
        config,
        build_encoder(config),
        components=prepared.components,
        tools=asyncio.run(open_tools(config, services)),
        branching=True,
    )
    policy = policy_spec(config, prepared.components, prepared.total_steps)
    loop = Loop(
        TrainRun(
            config=config,
            folder=folder,
            prepared=prepared,
            backend=LocalBackend(LocalRanks(policy, None), rollouts, services),
            policy=policy,
            prefixes=None,
            critic=None,
            checkpoints=Checkpoints(folder / "checkpoints", keep=1),
            tracker=Steps(len(example(rollouts.encoder, 0, fill).prompt)),
            state=TrainState(data_fingerprint=""),
            preemption=Preemption(grace_s=0),
        )
    )
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    send({"ready": "ramet", "ramet": ramet.__version__, **versions})
    search_plugin.barrier.wait()
    asyncio.run(loop.run())


def main() -> None:
    what, work = sys.argv[1], Path(sys.argv[2])
    if what == "texts":
        texts = [call(0), answer(0), result(0), STEP.system_prompt([search_plugin.SCHEMA])]
        (work / "ramet_texts.json").write_text(json.dumps(texts), encoding="utf-8")
    elif what == "measure":
        example(Encoder(tokenizer_of(work)), 0, Lengths()).lengths.write(work / "ramet_lengths.json")
    elif what == "fit":
        torch.set_num_threads(1)
        fill = Lengths.read(work / "ramet_fill.json")
        tokenizer = tokenizer_of(work)
        examples = [example(Encoder(tokenizer), i, fill, draw) for i, draw in drawn()]
        examples[0].lengths.write(work / "ramet_filled.json")
        fit(examples, tokenizer, work / "ramet_model")
    else:
        serve(work)


if __name__ == "__main__":
    main()
