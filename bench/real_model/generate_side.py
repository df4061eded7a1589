"""Generation alone: `generate_side.py SETTINGS` with `transformers`, `vllm` or `vllm-compiled`. No tool, no training.

All have the prompts of a step and sample the same number of tokens: `generate` by min_new_tokens, vLLM by ignore_eos.
`vllm` has what Ramet sets for it (eager, the cache's size); `vllm-compiled` leaves compiling to vLLM's default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from shape import N_QUESTIONS, Barrier, Settings, question, send

Sampled = list[list[int]]


def batches(settings: Settings) -> Iterator[list[list[int]]]:
    """Token ids of the prompts of each step, without end."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(settings.model)
    step = 0
    while True:
        numbers = [(step * settings.questions + i) % N_QUESTIONS for i in range(settings.questions)]
        talks = [[{"role": "user", "content": question(number)}] for number in numbers]
        yield [
            list(tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)) for talk in talks
        ]
        step += 1


def by_transformers(settings: Settings) -> Callable[[list[list[int]]], Sampled]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(settings.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(settings.model, dtype=getattr(torch, settings.precision))

    def generate(prompts: list[list[int]]) -> Sampled:
        ids = torch.tensor([prompt for prompt in prompts for _ in range(settings.rollouts)])
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=settings.tokens,
                max_new_tokens=settings.tokens,
            )
        sampled: Sampled = out[:, ids.shape[1] :].tolist()
        return sampled

    return generate


def by_vllm(settings: Settings) -> Callable[[list[list[int]]], Sampled]:
    eager = settings.side == "vllm"
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if eager:
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    dtype: Any = settings.precision
    llm = LLM(
        model=settings.model,
        skip_tokenizer_init=True,
        dtype=dtype,
        enforce_eager=eager,
        max_model_len=512,
        max_num_seqs=settings.questions * settings.rollouts,
        block_size=32,
        kv_cache_memory_bytes=2**30,
    )
    sampling = SamplingParams(
        n=settings.rollouts, temperature=1.0, max_tokens=settings.tokens, ignore_eos=True, detokenize=False
    )

    def generate(prompts: list[list[int]]) -> Sampled:
        requests = [TokensPrompt(prompt_token_ids=ids) for ids in prompts]
        return [list(one.token_ids) for out in llm.generate(requests, sampling, use_tqdm=False) for one in out.outputs]

    return generate


def main() -> None:
    settings, barrier = Settings.read(), Barrier()
    generate = by_transformers(settings) if settings.side == "transformers" else by_vllm(settings)
    send({})
    for prompts in batches(settings):
        barrier.wait()
        sampled = generate(prompts)
        wall = barrier.elapsed()
        work = {
            "rollouts": len(sampled),
            "prompt_tokens": settings.rollouts * sum(map(len, prompts)),
            "sampled_tokens": sum(map(len, sampled)),
        }
        barrier.report(wall, work, generation_s=wall)


if __name__ == "__main__":  # vLLM may start processes that import this file
    main()
