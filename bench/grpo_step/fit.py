"""A tiny Qwen3 that has memorised one task: a rollout draws its number, and samples the same tokens after it."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from task import Example
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

STEPS, BATCH, PEAK_LR = 250, 4, 3e-3
SHARPER = 3.0  # then a token's chance to be another one falls from about 1e-3 to 1e-9: a step samples about 2000


def fit(examples: list[Example], tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Train from the same initial weights on either side, and write model and tokenizer."""
    torch.manual_seed(0)
    rng = random.Random(0)
    model = Qwen3ForCausalLM(  # type: ignore[no-untyped-call]
        Qwen3Config(
            vocab_size=-(-len(tokenizer) // 64) * 64,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LR, total_steps=STEPS)
    for _ in range(STEPS):
        ids, labels = _batch(rng.sample(examples, BATCH))
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    print(f"{folder.name}: {STEPS} steps, loss {float(loss.detach()):.1e}", flush=True)
    with torch.no_grad():
        model.model.norm.weight.mul_(SHARPER)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _batch(examples: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """All examples have one length."""
    ids = [e.prompt + e.call + e.result + e.answer for e in examples]
    labels = [[-100] * len(e.prompt) + e.call + [-100] * len(e.result) + e.answer for e in examples]
    return torch.tensor(ids), torch.tensor(labels)
