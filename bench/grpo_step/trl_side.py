"""TRL's side, in TRL's own environment: `trl_side.py tokenizer|measure|fit|serve FOLDER`.

TRL decides the texts: its Qwen3 chat template with the tool's JSON schema, its parser, its tool loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
import trl
from datasets import Dataset
from fit import fit
from protocol import StepBarrier, send
from task import FILL, GROUP_SIZE, LEARNING_RATE, MAX_COMPLETION, N_QUESTIONS, TASKS, Example, Lengths, drawn, question
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template, qwen3_training_chat_template
from words import train_tokenizer

CALL = (
    "<think>\n000\n</think>\n\n<tool_call>\n"
    '{"name": "search", "arguments": {"query": "capital"}}\n</tool_call><|im_end|>'
)
ANSWER = "<think>\n\n</think>\n\nThe answer is 42.<|im_end|>"
RESULT = "result for capital"
AROUND = ("\n<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
barrier = StepBarrier()


async def search(query: str) -> str:
    """
    Search the web.

    Args:
        query: The query.

    Returns:
        The result.
    """
    barrier.enter_tool()
    await asyncio.sleep(barrier.latency_s)
    barrier.leave_tool()
    return RESULT


def talk(number: int, fill: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": question(number, fill)}]


def example(tokenizer: Any, number: int, fill: Lengths, draw: str = "000") -> Example:
    prompt = tokenizer.apply_chat_template(
        talk(number, fill.prompt),
        tools=[search],
        add_generation_prompt=True,
        return_dict=False,
        chat_template=qwen3_training_chat_template,
    )
    parts = (CALL.replace("000", draw), AROUND[0] + RESULT + AROUND[1], ANSWER)
    call, result, answer = (tokenizer.encode(part, add_special_tokens=False) for part in parts)
    return Example(list(prompt), call, result, answer)


def make_tokenizer(work: Path) -> None:
    """One tokenizer for both sides, learned from the texts of either."""
    theirs = json.loads((work / "ramet_texts.json").read_text(encoding="utf-8"))
    plain = train_tokenizer([CALL], qwen3_chat_template)
    prompt = plain.apply_chat_template(talk(0, 0), tools=[search], add_generation_prompt=True, tokenize=False)
    questions = [question(i, 0) for i in range(N_QUESTIONS)]
    texts = [CALL, ANSWER, AROUND[0] + RESULT + AROUND[1], prompt, FILL * 8, *theirs]
    tokenizer = train_tokenizer(texts * 20 + questions, qwen3_chat_template)
    tokenizer.padding_side = "left"
    tokenizer.save_pretrained(work / "trl_tokenizer")


class Trainer(GRPOTrainer):  # type: ignore[misc]
    """Counts what a step did."""

    sampled = 0
    work: dict[str, float] = {}  # noqa: RUF012

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._generate_single_turn(*args, **kwargs)
        self.sampled += sum(map(len, result[0]))
        return result

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.sampled = 0
        out = super()._generate_and_score_completions(inputs)
        trained = out["completion_mask"] * out.get("tool_mask", 1)
        self.work = {
            "rollouts": len(out["prompt_ids"]),
            "prompt_tokens": int(out["prompt_mask"].sum()),
            "response_tokens": int(out["completion_mask"].sum()),
            "sampled_tokens": self.sampled,
            "trained_tokens": int(trained.sum()),
        }
        return out


class Steps(TrainerCallback):
    trainer: Trainer

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        barrier.wait()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        barrier.report(self.trainer.work, {})


def reward(completions: list[Any], **_: Any) -> list[float]:
    """Unequal within a group, so that there is something to learn."""
    return [0.01 * (i % GROUP_SIZE) for i in range(len(completions))]


def serve(work: Path) -> None:
    torch.set_num_threads(1)
    fill = Lengths.read(work / "trl_fill.json")
    folder = work / "trl_model"
    steps = Steps()
    trainer = Trainer(
        model=str(folder),
        reward_funcs=reward,
        processing_class=AutoTokenizer.from_pretrained(folder),
        tools=[search],
        callbacks=[steps],
        train_dataset=Dataset.from_dict({"prompt": [talk(i, fill.prompt) for i in range(N_QUESTIONS)]}),
        args=GRPOConfig(
            output_dir=str(work / "trl_out"),
            per_device_train_batch_size=TASKS * GROUP_SIZE,
            num_generations=GROUP_SIZE,
            max_completion_length=MAX_COMPLETION,
            max_steps=1_000_000,
            learning_rate=LEARNING_RATE,
            beta=0.0,
            max_tool_calling_iterations=4,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
    )
    steps.trainer = trainer
    send({"ready": "trl", "trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__})
    trainer.train()


def main() -> None:
    what, work = sys.argv[1], Path(sys.argv[2])
    if what == "tokenizer":
        make_tokenizer(work)
    elif what == "serve":
        serve(work)
    else:
        tokenizer: Any = AutoTokenizer.from_pretrained(work / "trl_tokenizer")
        if what == "measure":
            example(tokenizer, 0, Lengths()).lengths.write(work / "trl_lengths.json")
            return
        torch.set_num_threads(1)
        fill = Lengths.read(work / "trl_fill.json")
        examples = [example(tokenizer, i, fill, draw) for i, draw in drawn()]
        examples[0].lengths.write(work / "trl_filled.json")
        fit(examples, tokenizer, work / "trl_model")


if __name__ == "__main__":
    main()
