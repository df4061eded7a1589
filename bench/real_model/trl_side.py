"""TRL's sides, in environments of their own: `trl_side.py SETTINGS`, with `generate` or with vLLM in its process.

An ordinary `GRPOTrainer` on the CPU, all rollouts in one batch. The bench's are the lengths (`generate` gets
min_new_tokens, vLLM ignore_eos) and, where a tool is called, that each rollout calls it after its first turn: TRL's
tool loop gets that call instead of one parsed from the text, which a model that was not taught to call cannot write.
What follows is TRL's: it runs the tool, renders its result by the chat template and generates again.

TRL 1.16 is written for vLLM on GPUs: it leaves the precision to vLLM, which then takes bfloat16, and writes new weights
into parameters that the CPU build has packed and dropped. `use_cpu_vllm` corrects both.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {
    "CUDA_VISIBLE_DEVICES": "",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # this and the next as Ramet sets them
    "TORCHDYNAMO_DISABLE": "1",  # TRL compiles nothing
}

import torch
import transformers
import trl
import trl.generation.vllm_generation as vllm_generation
import trl.trainer.grpo_trainer as grpo
from datasets import Dataset
from shape import LEARNING_RATE, N_QUESTIONS, RESULT, RESULT_TOKENS, Barrier, Settings, question, send
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

FILL = " so"  # one token, for the end of turn, which Ramet inserts where a message was cut at its length
CONTENT = "message['content'] +"  # in the model's chat template, which has no tool calls; TRL requires them
WITH_CALLS = "message['content'] + (message['tool_calls'] | tojson if message['tool_calls'] else '') +"
MAX_MODEL_TOKENS = 512  # of vLLM
barrier = Barrier()


async def counter(text: str) -> str:
    """
    Count seeds.

    Args:
        text: What the model wrote.

    Returns:
        The result.
    """
    assert barrier.tool_s is not None
    barrier.calls += 1
    await asyncio.sleep(barrier.tool_s)
    return RESULT + FILL


class CpuVllm(vllm_generation.VLLMGeneration):  # type: ignore[misc]
    """TRL's vLLM with weights that its CPU build can load."""

    def sync_weights(self) -> None:
        weights = [(name, parameter.data) for name, parameter in self.model.named_parameters()]
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        self.llm.reset_prefix_cache()


def use_cpu_vllm(precision: str) -> None:
    """Have the trainer start vLLM with this precision, eager, and with 1 GiB for keys and values."""
    options = {"dtype": precision, "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**30}
    vllm_generation.LLM = partial(vllm_generation.LLM, **options)
    grpo.VLLMGeneration = CpuVllm


class Trainer(GRPOTrainer):  # type: ignore[misc]
    """Sets the length of each turn, and counts what a step did."""

    def __init__(self, settings: Settings, **arguments: Any) -> None:
        self.settings = settings
        self.turn = 0  # of the step
        self.sampled = 0
        self.generation_s = 0.0  # tools left out
        self.work: dict[str, int] = {}
        super().__init__(**arguments)

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        n = self.settings.turn_tokens(self.turn, calls=barrier.tool_s is not None)
        if self.use_vllm:
            self.vllm_generation.max_completion_length = n
        else:
            self.generation_config.max_new_tokens = self.generation_config.min_new_tokens = n
        started = time.perf_counter()
        result = super()._generate_single_turn(*args, **named)
        self.generation_s += time.perf_counter() - started
        self.sampled += sum(map(len, result[0]))
        self.turn += 1
        return result

    def parsed(self, tokenizer: Any, ids: list[int], **_: Any) -> dict[str, Any]:
        """A message of the model, in place of TRL's `parse_response`."""
        message: dict[str, Any] = {"role": "assistant", "content": tokenizer.decode(ids)}
        if barrier.tool_s is not None and self.turn == 1:
            call = {"name": "counter", "arguments": {"text": message["content"]}}
            message["tool_calls"] = [{"type": "function", "function": call}]
        return message

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.turn = self.sampled = 0
        self.generation_s = 0.0
        out = super()._generate_and_score_completions(inputs)
        responses, trained = int(out["completion_mask"].sum()), int((out["completion_mask"] * out["tool_mask"]).sum())
        self.work = {
            "rollouts": len(out["prompt_ids"]),
            "prompt_tokens": int(out["prompt_mask"].sum()),
            "sampled_tokens": self.sampled,
            "inserted_tokens": responses - trained,
            "trained_tokens": trained,
        }
        return out


class Steps(TrainerCallback):
    trainer: Trainer
    before: torch.Tensor
    step = 0

    def on_train_begin(self, *args: Any, **named: Any) -> None:
        self.before = self.watched()

    def on_step_begin(self, *args: Any, **named: Any) -> None:
        barrier.wait()

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        wall, after, trainer = barrier.elapsed(), self.watched(), self.trainer
        work = trainer.work | {"optimizer_steps": state.global_step - self.step}
        changed = float((after - self.before).abs().max())
        self.before, self.step = after, state.global_step
        barrier.report(wall, work, generation_s=trainer.generation_s, largest_weight_change=changed)

    def watched(self) -> torch.Tensor:
        weight: torch.Tensor = self.trainer.model.model.layers[0].self_attn.q_proj.weight
        return weight.detach().clone()


def reward(completions: list[Any], **_: Any) -> list[float]:
    """Unequal within a group, so that there is something to learn."""
    return [0.01 * i for i in range(len(completions))]


def arguments(settings: Settings) -> GRPOConfig:
    uses_vllm = settings.side == "trl-vllm"
    vllm: dict[str, Any] = {
        "vllm_mode": "colocate",
        "vllm_max_model_length": MAX_MODEL_TOKENS,
        "vllm_importance_sampling_correction": False,  # else one more pass
        "generation_kwargs": {"ignore_eos": True},
    }
    return GRPOConfig(
        output_dir=str(Path(settings.work) / settings.side),
        per_device_train_batch_size=settings.questions * settings.rollouts,
        num_generations=settings.rollouts,
        max_completion_length=settings.tokens + RESULT_TOKENS,
        max_steps=1_000_000,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        beta=0.0,
        max_tool_calling_iterations=1,
        gradient_checkpointing=False,
        bf16=settings.precision == "bfloat16",
        use_cpu=True,
        use_vllm=uses_vllm,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **(vllm if uses_vllm else {}),
    )


def main() -> None:
    settings = Settings.read()
    torch.set_num_threads(settings.threads)
    tokenizer = AutoTokenizer.from_pretrained(settings.model, padding_side="left")
    template = tokenizer.chat_template
    assert CONTENT in template, template
    tokenizer.chat_template = template.replace(CONTENT, WITH_CALLS)
    tokenizer.response_template = {}  # so that TRL parses; by `parsed`
    if settings.side == "trl-vllm":
        use_cpu_vllm(settings.precision)
    steps = Steps()
    trainer = Trainer(
        settings,
        model=settings.model,
        reward_funcs=reward,
        processing_class=tokenizer,
        tools=[counter],
        callbacks=[steps],
        train_dataset=Dataset.from_dict(
            {"prompt": [[{"role": "user", "content": question(i)}] for i in range(N_QUESTIONS)]}
        ),
        args=arguments(settings),
    )
    steps.trainer = trainer
    grpo.parse_response = trainer.parsed
    send({"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__})
    trainer.train()


if __name__ == "__main__":
    main()
