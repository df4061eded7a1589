"""What is measured: models by their true shapes with random weights, and how much work each part does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ramet.config.schema import Dtype, ModelConfig
from ramet.models.tiny import make_tokenizer

# Facts of the published config.json files.
QWEN25_05B = {
    "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2,
}  # fmt: skip
QWEN25_15B = {
    "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2,
}  # fmt: skip
QWEN25_7B_BLOCKS = {  # four of 28
    "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 4,
    "num_attention_heads": 28, "num_key_value_heads": 4,
}  # fmt: skip
REHEARSAL = {  # heads of 32: vLLM's CPU build takes no smaller ones
    "vocab_size": 304, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """`tokens` of a sequence, prompt included, and `sequences` of an update; the engine's slots and sampled tokens."""

    name: str
    shape: dict[str, int]
    tied: bool = True
    prompt: int = 512
    tokens: int = 4096
    sequences: int = 16
    updates: int = 2  # that are timed, after one that is not
    slots: int = 64
    sampled: int = 256

    @property
    def response(self) -> int:
        return self.tokens - self.prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is checked with the smallest, what a run of one rank does, and the blocks of a model that needs several."""

    small: Size
    middle: Size
    blocks: Size

    def __iter__(self) -> Iterator[Size]:
        """Each once."""
        return iter({size.name: size for size in (self.small, self.middle, self.blocks)}.values())


TINY = Size(name="tiny", shape=REHEARSAL, prompt=8, tokens=32, sequences=4, updates=1, slots=4, sampled=8)
GPU = Sizes(
    small=Size(name="0.5B", shape=QWEN25_05B),
    middle=Size(name="1.5B", shape=QWEN25_15B),
    blocks=Size(name="7B, 4 blocks", shape=QWEN25_7B_BLOCKS, tied=False),
)
CPU = Sizes(small=TINY, middle=TINY, blocks=TINY)


def make_model(size: Size, folder: Path, device: torch.device) -> ModelConfig:
    """A Hugging Face folder with random bfloat16 weights; every byte has a token, the other rows of the head none."""
    tokenizer = make_tokenizer()
    options: dict[str, Any] = dict(size.shape)
    config = AutoConfig.for_model(
        "qwen2", **options, max_position_embeddings=32768, tie_word_embeddings=size.tied, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(1)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ModelConfig(path=str(folder), dtype=Dtype.BFLOAT16, device=device.type)
