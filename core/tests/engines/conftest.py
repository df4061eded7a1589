"""Tiny models of every architecture, and the torch engine as a subject of the engine checks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
from engine_subject import EngineUnderTest
from transformers import PreTrainedModel

from ramet.engines.config import TorchEngineConfig
from ramet.engines.torch import TorchEngine
from ramet.models.encoder import Encoder
from ramet.models.tiny import make_tokenizer, tiny_model

HEADS = {"qwen2": (4, 2), "qwen3": (4, 4), "llama": (4, 1)}  # heads and kv heads


@cache
def tiny_encoder() -> Encoder:
    return Encoder(make_tokenizer())


@cache
def engine_model(architecture: str, *, tie: bool = True) -> PreTrainedModel:
    heads, kv_heads = HEADS[architecture]
    return tiny_model(
        architecture,
        vocabulary=288,
        hidden=48,
        intermediate=80,
        layers=2,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=tie,
    ).eval()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def encoder() -> Encoder:
    return tiny_encoder()


@pytest.fixture
def make_model() -> Callable[..., PreTrainedModel]:
    return engine_model


@pytest.fixture
def make_subject() -> Callable[..., EngineUnderTest]:
    """A subject whose engines each own a copy of the model."""

    def make(architecture: str = "qwen2", *, tie: bool = True, prefill_tokens: int = 2048) -> EngineUnderTest:
        model = engine_model(architecture, tie=tie)

        def engine(
            *, slots: int = 8, max_tokens: int = 160, deterministic: bool = False, in_flight: bool = False
        ) -> TorchEngine:
            config = TorchEngineConfig(slots=slots, prefill_tokens=prefill_tokens)
            own = copy.deepcopy(model)
            return TorchEngine(
                config,
                model=own,
                encoder=tiny_encoder(),
                max_tokens=max_tokens,
                deterministic=deterministic,
                in_flight=in_flight,
            )

        return EngineUnderTest(make=engine, model=model, encoder=tiny_encoder())

    return make
