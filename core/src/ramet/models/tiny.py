"""A small model and byte-level tokenizer, made locally and deterministically: for the quickstart and the tests.

The tokenizer has one token per byte, and one special token per tag, so nothing is downloaded or trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from ramet.io.os_errors import naming

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("think", "python", "search", "result", "answer")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer(tags: Sequence[str] = TAGS, chat_template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per byte (ids 0 to 255), then pad, end of message, one token per role and two per tag."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    markup = [f"<{slash}{tag}>" for tag in tags for slash in ("", "/")]
    tokenizer.add_special_tokens([PAD, END, *ROLES, *markup])
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[*ROLES, *markup],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    return fast


def make_tiny_model(
    folder: str | Path,
    *,
    seed: int = 1,
    architecture: str = "qwen2",
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    intermediate: int = 512,
    max_positions: int = 1024,
    initializer_range: float = 0.06,
    tags: Sequence[str] = TAGS,
    chat_template: str = CHAT_TEMPLATE,
) -> Path:
    """Write a randomly initialised model and its tokenizer to `folder`; the same arguments give the same bytes.

    `architecture` is `qwen2`, `qwen3` or `llama`. The defaults give about 1.1 million parameters. With the
    usual initialisation of 0.02 such a model learns to copy an order of magnitude later than with 0.06.
    """
    folder = Path(folder)
    tokenizer = make_tokenizer(tags, chat_template)
    model = tiny_model(
        architecture,
        vocabulary=-(-len(tokenizer) // 16) * 16,
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        seed=seed,
        max_position_embeddings=max_positions,
        initializer_range=initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with naming(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def tiny_model(
    architecture: str,
    *,
    vocabulary: int,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    seed: int = 0,
    attention: str | None = None,
    **more: Any,
) -> PreTrainedModel:
    """A randomly initialised float32 model in host memory; the same arguments give the same weights.

    Without `kv_heads` there are as many as `heads`, and `head_dim` is `hidden // heads`. `attention` is one of
    transformers' implementations; `more` are entries of the architecture's configuration.
    """
    config = AutoConfig.for_model(
        architecture,
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads if kv_heads is None else kv_heads,
        head_dim=hidden // heads if head_dim is None else head_dim,
        **more,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.float32, attn_implementation=attention
        )
    return model
