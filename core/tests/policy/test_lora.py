"""Adapters: what is trained, what is merged, what travels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from ramet.errors import ConfigError
from ramet.models.tiny import make_tiny_model
from ramet.policy.lora import (
    AdapterMerger,
    adapter_weights,
    add_adapter,
    check_lora,
    merged_weights,
)

pytest.importorskip("peft")
RANK = 4
LINEAR = 7  # layers of a block


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "llama"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return make_tiny_model(folder, architecture=request.param, hidden=32, layers=2, heads=2, intermediate=48)


@pytest.fixture
def plain(base: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(base).eval()


@pytest.fixture
def adapted(base: Path) -> PreTrainedModel:
    """With adapters that do something."""
    model = add_adapter(AutoModelForCausalLM.from_pretrained(base).eval(), RANK)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.2, generator=generator)
    return model


def kept_adapter(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in adapter_weights(model)}


def logprobs(model: torch.nn.Module) -> Tensor:
    ids = torch.arange(40)[None]
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits.log_softmax(-1)


def test_a_fresh_adapter_changes_nothing(plain: PreTrainedModel, base: Path):
    model = add_adapter(AutoModelForCausalLM.from_pretrained(base).eval(), RANK)
    assert type(model) is type(plain)
    assert torch.equal(logprobs(model), logprobs(plain))


def test_every_linear_layer_but_the_head_is_adapted_in_float32(base: Path):
    model = add_adapter(AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16), RANK)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 * LINEAR and all("lora_" in name for name in trained)
    assert {p.dtype for p in trained.values()} == {torch.float32}
    assert model.get_output_embeddings().weight.dtype is torch.bfloat16


def test_the_same_seed_gives_the_same_adapter_whatever_torch_drew_before(base: Path):
    states = []
    for seed in (3, 3, 4):
        torch.rand(1)
        model = AutoModelForCausalLM.from_pretrained(base)
        states.append(kept_adapter(add_adapter(model, RANK, seed=seed)))
    same, other = (all(torch.equal(states[0][n], s[n]) for n in s) for s in states[1:])
    assert same and not other


def test_training_moves_the_adapters_and_nothing_else(adapted: PreTrainedModel):
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
    ids = torch.arange(20)[None]
    adapted(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    moved = {name for name, tensor in adapted.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {name for name in before if "lora_" in name}


def test_merged_weights_have_the_names_and_the_answers_of_the_adapted_model(
    adapted: PreTrainedModel, plain: PreTrainedModel
):
    expected, start = logprobs(adapted), logprobs(plain)
    merged = dict(merged_weights(adapted))
    own = plain.state_dict()
    assert list(merged) == list(own)
    assert all(merged[name].shape == own[name].shape for name in own)
    plain.load_state_dict(merged)
    assert (logprobs(plain) - expected).abs().max() < 1e-5
    assert (start - expected).abs().max() > 0.1
    assert torch.equal(logprobs(adapted), expected)  # merging left it as it was


def test_a_model_without_adapters_gives_its_own_weights(plain: PreTrainedModel):
    own = plain.state_dict()
    merged = dict(merged_weights(plain))
    assert list(merged) == list(own) and all(torch.equal(merged[name], own[name]) for name in own)


@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
def test_base_files_and_adapter_make_the_merged_weights(
    adapted: PreTrainedModel, tmp_path: Path, base: Path, shard_size
):
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors").exists() == (shard_size == "5GB")
    found = dict(AdapterMerger(tmp_path)(adapter_weights(adapted)))
    expected = dict(merged_weights(adapted))
    tied = set() if not adapted.config.tie_word_embeddings else {"lm_head.weight"}
    assert found.keys() == expected.keys() - tied  # a tied head is in the files once
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_base_in_bfloat16_is_merged_in_float32(adapted: PreTrainedModel, tmp_path: Path, base: Path):
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(tmp_path)
    found = dict(AdapterMerger(tmp_path)(adapter_weights(adapted)))
    name = "model.layers.0.mlp.up_proj.weight"
    expected = dict(merged_weights(adapted))[name]
    rounded = adapted.state_dict()[name.replace(".weight", ".base_layer.weight")].bfloat16().float()
    original = adapted.state_dict()[name.replace(".weight", ".base_layer.weight")]
    assert torch.allclose(found[name], expected - original + rounded, atol=1e-6)
    assert found["model.norm.weight"].dtype is torch.bfloat16


def test_what_older_files_hold_beside_the_weights_is_left_out(adapted: PreTrainedModel, tmp_path: Path, base: Path):
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(load_file(base / "model.safetensors") | frequencies, tmp_path / "model.safetensors")
    found = dict(AdapterMerger(tmp_path)(adapter_weights(adapted)))
    assert found.keys() <= dict(merged_weights(adapted)).keys()


def test_an_adapter_of_another_model_is_refused(adapted: PreTrainedModel, tmp_path: Path):
    other = make_tiny_model(tmp_path / "other", hidden=32, layers=1, heads=2, intermediate=48)
    with pytest.raises(ConfigError, match=r"has no weight for 14 of the adapter's, such as model\.layers\.1\.mlp"):
        list(AdapterMerger(other)(adapter_weights(adapted)))
    with pytest.raises(ConfigError, match="safetensors files cannot be read"):
        list(AdapterMerger(tmp_path)([]))


def test_what_travels_is_small_and_stays_as_it_was(adapted: PreTrainedModel):
    state = kept_adapter(adapted)
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
    before = state[name].clone()
    adapted.get_parameter("model.layers.1.self_attn.q_proj.lora_B.default.weight").data.zero_()
    assert torch.equal(state[name], before) and len(state) == 2 * 2 * LINEAR
    assert sum(t.numel() for t in state.values()) < 0.5 * sum(p.numel() for p in adapted.parameters())


def test_peft_is_asked_for_before_the_start(monkeypatch: pytest.MonkeyPatch):
    assert check_lora() == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert check_lora()[0].startswith("policy.lora_rank: needs the package peft")
