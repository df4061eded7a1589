#!/usr/bin/env python3
"""Print the tables of docs/memory.md, made by the plan of `--dry-run --on`. Nothing is loaded.

python scripts/memory_table.py            # all tables
python scripts/memory_table.py Qwen2.5-7B # the row of one model
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet.config.compose import compose
from ramet.planning.memory import Inputs, MemoryPlan, estimate
from ramet.planning.memory_report import check_memory
from ramet.planning.memory_sft import plan_sft_memory
from ramet.planning.model_shape import read_shape
from ramet.planning.placement import machine_of

SIZES = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads".split()
QWEN2, QWEN3 = {"model_type": "qwen2"}, {"model_type": "qwen3", "head_dim": 128}
SHAPES: dict[str, tuple[dict[str, Any], list[int], bool]] = {  # facts of the published models' config.json
    "Qwen2.5-0.5B": (QWEN2, [151936, 896, 4864, 24, 14, 2], True),
    "Qwen2.5-1.5B": (QWEN2, [151936, 1536, 8960, 28, 12, 2], True),
    "Qwen2.5-3B": (QWEN2, [151936, 2048, 11008, 36, 16, 2], True),
    "Qwen2.5-7B": (QWEN2, [152064, 3584, 18944, 28, 28, 4], False),
    "Qwen3-8B": (QWEN3, [151936, 4096, 12288, 36, 32, 8], False),
    "Qwen3-14B": (QWEN3, [151936, 5120, 17408, 40, 40, 8], False),
}
MACHINES = ("1x24GB", "1x80GB", "8x80GB")
RL = (
    "algorithm=grpo", "model.dtype=bfloat16", "data.train=[tasks.jsonl]", "engine=vllm", "engine.params.slots=64",
    "data.max_prompt_tokens=1024", "rollout.max_response_tokens=3072", "policy.max_microbatch_tokens=8192",
    "policy.activation_checkpointing=true",
)  # fmt: skip
SHARED = ("cluster=ray", "cluster.colocate=true", "cluster.policy_workers=8", "cluster.rollout_workers=8")
SFT = ("sft.data=[traces.jsonl]", "model.dtype=bfloat16", "sft.max_tokens=4096", "sft.max_microbatch_tokens=4096")
FSDP = ("sft.strategy=fsdp", "cluster.policy_workers=8")
CACHE_TOKENS = 64 * 1024  # that an engine must have room for: 16 of its 64 slots at full length
SHARES = [share / 100 for share in range(15, 90, 5)]  # of the GPU for vLLM: the smallest that is enough is taken
LORA = 32
KNOBS = (  # of one GPU, each alone
    "policy.lora_rank=32", "policy.activation_checkpointing=2", "policy.activation_checkpointing=false",
    "policy.max_microbatch_tokens=4096", "policy.max_microbatch_tokens=16384", "policy.offload=optimizer",
    "rollout.max_response_tokens=7168", "rollout.max_response_tokens=31744", "train.kl_coef=0.001",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The plan of one setting. `share`: of the GPU for vLLM, None where there is no engine."""

    plan: MemoryPlan
    share: float | None

    @property
    def fits(self) -> bool:
        return not check_memory(self.plan)


def folder(model: str, parent: Path) -> Path:
    """A model's folder with `config.json` alone, made in `parent`."""
    kind, sizes, tied = SHAPES[model]
    made = parent / model
    made.mkdir(exist_ok=True)
    facts = {**kind, **dict(zip(SIZES, sizes, strict=True)), "tie_word_embeddings": tied}
    (made / "config.json").write_text(json.dumps(facts))
    return made


def plan_rl(model: Path, machine: str, *keys: str) -> Fit:
    """The plan with the smallest share of vLLM that gives it `CACHE_TOKENS`; with the largest share if none does."""
    several = SHARED if machine.startswith("8x") else ()
    for share in SHARES:
        own = [f"model.path={model}", f"engine.params.gpu_memory_utilization={share}"]
        config = compose([*RL, *several, *own, *keys], job="train").config
        plan = estimate(Inputs(config=config, shape=read_shape(config.model), machine=machine_of(config, machine)))
        if plan.engine is not None and plan.engine.cache >= CACHE_TOKENS * plan.engine.token_bytes:
            break
    return Fit(plan=plan, share=share)


def plan_sft(model: Path, machine: str, *keys: str) -> Fit:
    several = FSDP if machine.startswith("8x") else ()
    config = compose([*SFT, *several, f"model.path={model}", *keys], job="sft").config
    plan = plan_sft_memory(config, machine_of(config, machine))
    assert isinstance(plan, MemoryPlan), plan
    return Fit(plan=plan, share=None)


def gib(size: float) -> str:
    return f"{size / 2**30:.1f}"


def cell(fits: Iterator[Fit]) -> str:
    """What fits first, all weights or LoRA, with its largest need on a device in GiB."""
    for fit, name in zip(fits, ("all weights", "LoRA"), strict=False):
        if fit.fits:
            share = "" if fit.share is None else f", vLLM {fit.share:g}"
            return f"{name} {gib(fit.plan.need)}{share}"
    return "no"


def row(model: str, parent: Path) -> str:
    """The row of the table of a model: parameters, then RL and SFT on each machine."""
    made = folder(model, parent)
    parameters = read_shape(compose([f"model.path={made}"], job="train").config.model).n_parameters
    rl = [cell(plan_rl(made, on, *keys) for keys in ((), (f"policy.lora_rank={LORA}",))) for on in MACHINES]
    sft = [cell(plan_sft(made, on, *keys) for keys in ((), (f"sft.lora_rank={LORA}",))) for on in MACHINES]
    return f"| {' | '.join([model, f'{parameters / 1e9:.2f}', *rl, *sft])} |"


def knobs(model: str, machine: str, parent: Path) -> Iterator[str]:
    """Rows of a model on one GPU: the update's and the rollouts' GiB as they are, and with each setting alone."""
    made = folder(model, parent)
    for key in ("", *KNOBS):
        fit = plan_rl(made, machine, *([key] if key else []))
        (device,) = fit.plan.devices
        needs = {phase: sum(parts.values()) for phase, parts in device.phases.items()}
        yield f"| {f'`{key}`' if key else 'as in the first table'} | {' | '.join(gib(n) for n in needs.values())} |"


def main(models: list[str]) -> None:
    with tempfile.TemporaryDirectory() as parent:
        for model in models or SHAPES:
            print(row(model, Path(parent)))
        if not models:
            print(*knobs("Qwen2.5-1.5B", "1x80GB", Path(parent)), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
