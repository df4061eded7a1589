"""Decoding with packed weights: the same logits but for rounding, also after new weights."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from ramet.engines.config import TorchEngineConfig
from ramet.engines.torch import TorchEngine, packed
from ramet.engines.torch.forward import Forward
from ramet.engines.torch.model_runner import ModelRunner
from ramet.models.encoder import Encoder
from ramet.models.tiny import make_tokenizer

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300,
}  # fmt: skip
CAN_PACK = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()
needs_packing = pytest.mark.skipif(not CAN_PACK, reason="this build of torch has no packed linear layers")


def model(kind: str, *, tied: bool = False) -> PreTrainedModel:
    torch.manual_seed(1)
    sizes = {**SIZES, "tie_word_embeddings": tied}
    made = LlamaForCausalLM(LlamaConfig(**sizes)) if kind == "llama" else Qwen2ForCausalLM(Qwen2Config(**sizes))
    for name, parameter in made.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3 if "proj" in name else 1.0)  # biases of Qwen2 too
    return made.eval()


@torch.inference_mode()
def logits(forward: Forward) -> torch.Tensor:
    """Of 5 rows, each after a prompt of 7 tokens."""
    slots = torch.arange(5)
    tokens = torch.arange(35).view(5, 7)
    starts, counts = torch.zeros(5, dtype=torch.int64), torch.full((5,), 7)
    forward.prefill(forward.prompts(tokens, starts, counts, slots, forward.length(7)))
    return forward.decode(tokens[:, 0], torch.full((5,), 7), slots, slice(0, 5), forward.length(8))


@needs_packing
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_packed_weights_give_the_same_logits_also_after_new_weights(kind: str, monkeypatch) -> None:
    monkeypatch.setattr(packed, "MIN_PARAMETERS", 0)
    plain = Forward(model(kind), slots=8, max_tokens=64)
    fast = Forward(model(kind), slots=8, max_tokens=64, pack=True)
    n_linear = sum(isinstance(module, torch.nn.Linear) for module in fast.model.modules())
    assert len(fast._packed) == n_linear == 15 and plain._packed == {}
    first = logits(plain)
    torch.testing.assert_close(logits(fast), first, rtol=1e-4, atol=1e-4)
    new = [(name, 0.5 * weight) for name, weight in plain.model.state_dict().items()]
    for forward in (plain, fast):
        ModelRunner(forward, deterministic=False).load(new)
    torch.testing.assert_close(logits(fast), logits(plain), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(fast), first, atol=0.1)


@needs_packing
@pytest.mark.parametrize("tied", [False, True])
def test_plain_numbers_are_kept_of_what_is_an_embedding_too(tied: bool, monkeypatch) -> None:
    """And names and shapes of all: an update that does not fit changes nothing, one that does everything."""
    monkeypatch.setattr(packed, "MIN_PARAMETERS", 0)
    fast = Forward(model("llama", tied=tied), slots=8, max_tokens=64, pack=True)
    plain = Forward(model("llama", tied=tied), slots=8, max_tokens=64)
    kept = {name for name, weight in fast.model.named_parameters() if not weight.is_meta}
    assert kept == {
        name for name in dict(plain.model.named_parameters()) if "proj" not in name and "lm_head" not in name
    }
    before, runner = logits(fast), ModelRunner(fast, deterministic=False)
    new = {name: 0.5 * weight for name, weight in plain.model.named_parameters()}
    name = "model.layers.1.mlp.up_proj.weight"
    for wrong in ({**new, name: torch.zeros(3, 3)}, {key: new[key] for key in new if key != name}):
        with pytest.raises(ValueError, match=name):
            runner.load(list(wrong.items()))
        assert torch.equal(logits(fast), before)
    runner.load(list(new.items()))
    ModelRunner(plain, deterministic=False).load(list(new.items()))
    torch.testing.assert_close(logits(fast), logits(plain), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(fast), before, atol=0.1)


def test_small_models_and_other_types_are_not_packed(monkeypatch) -> None:
    assert Forward(model("llama"), slots=8, max_tokens=64, pack=True)._packed == {}
    monkeypatch.setattr(packed, "MIN_PARAMETERS", 0)
    assert Forward(model("llama").bfloat16(), slots=8, max_tokens=64, pack=True)._packed == {}


@needs_packing
def test_an_engine_packs_unless_it_is_deterministic(monkeypatch) -> None:
    monkeypatch.setattr(packed, "MIN_PARAMETERS", 0)
    for deterministic in (False, True):
        made = model("llama")
        engine = TorchEngine(
            TorchEngineConfig(slots=16), model=made, encoder=Encoder(make_tokenizer()), max_tokens=64,
            deterministic=deterministic,
        )  # fmt: skip
        asyncio.run(engine.close())
        assert ("forward" in vars(made.lm_head)) is not deterministic


@needs_packing
def test_products_that_are_wrong_are_not_used(monkeypatch, caplog) -> None:
    monkeypatch.setattr(packed, "MIN_PARAMETERS", 0)
    monkeypatch.setattr(packed.PackedLinear, "__call__", lambda self, x: x @ self.layer.weight.T + 1)
    with caplog.at_level("INFO"):
        assert Forward(model("llama"), slots=8, max_tokens=64, pack=True)._packed == {}
    assert "wrong on this machine" in caplog.text
