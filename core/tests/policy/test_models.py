"""Compiled blocks compute what the model computes, at any length, with one compilation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM, FalconConfig, OPTConfig, PreTrainedConfig, PreTrainedModel

from ramet.config.schema import ModelConfig, PolicyConfig
from ramet.errors import ConfigError
from ramet.models.attention import COMPILER_OFF
from ramet.models.tiny import tiny_model
from ramet.policy.logprob_model import LogprobModel
from ramet.policy.models import blocks_of, build_trainable, checkpoint_blocks, compile_blocks

IDS = torch.arange(24)[None]
POSITIONS = torch.cat([torch.arange(10), torch.arange(14)])[None]  # two packed sequences


@pytest.fixture(autouse=True)
def from_scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(COMPILER_OFF, raising=False)  # a test of vLLM's may have set it in this process
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def model() -> PreTrainedModel:
    return tiny_model("qwen2", vocabulary=64, hidden=32, intermediate=48, layers=2, heads=2, kv_heads=1)


def answers(model: PreTrainedModel, length: int) -> list[Tensor]:
    """Hidden states and all gradients."""
    model.zero_grad()
    body = model.base_model
    hidden = body(input_ids=IDS[:, :length], position_ids=POSITIONS[:, :length], use_cache=False).last_hidden_state
    hidden.square().mean().backward()
    return [hidden.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for left, right in zip(found, expected, strict=True):
        assert (left - right).abs().max() < 1e-5


@pytest.mark.parametrize("checkpointing", [False, True])
def test_all_blocks_and_lengths_share_one_compilation(model: PreTrainedModel, checkpointing: bool):
    names = [name for name, _ in model.named_parameters()]
    expected = [answers(model, length) for length in (24, 17)]
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    compile_blocks(model, backend="eager")
    for length, wanted in zip((24, 17), expected, strict=True):
        assert_close(answers(model, length), wanted)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    assert [name for name, _ in model.named_parameters()] == names


@pytest.mark.parametrize(("every", "passes"), [(1, [2, 2, 2]), (2, [1, 2, 1]), (3, [2, 1, 1])])
def test_blocks_between_checkpointed_ones_are_computed_once(every: int, passes: list[int]):
    model = tiny_model("qwen2", vocabulary=64, hidden=32, intermediate=48, layers=3, heads=2, kv_heads=1)
    expected = answers(model, 24)
    checkpoint_blocks(model, every)
    counted = [0, 0, 0]

    def count(number: int) -> None:
        counted[number] += 1

    for number, block in enumerate(blocks_of(model)):
        block.register_forward_pre_hook(lambda *_, number=number: count(number))
    for found, wanted in zip(answers(model, 24), expected, strict=True):
        assert torch.equal(found, wanted)
    assert counted == passes
    with pytest.raises(ConfigError, match=r"policy\.activation_checkpointing=4: Qwen2ForCausalLM has 3 blocks"):
        checkpoint_blocks(model, 4)


def test_compilation_is_refused_where_it_is_switched_off(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(COMPILER_OFF, "1")
    with pytest.raises(ConfigError, match=r"policy\.compile=true: TORCHDYNAMO_DISABLE=1 switches compilation off"):
        compile_blocks(model)


@pytest.mark.slow  # about 20 s of compilation on a quiet core, 10 s from inductor's cache
@pytest.mark.skipif(
    torch.cuda.is_available() or not (shutil.which("g++") or shutil.which("clang++")),
    reason="inductor needs a C++ compiler for the CPU: g++ or clang++",
)
def test_inductor_stays_within_1e_5(model: PreTrainedModel):
    expected = answers(model, 24)
    compile_blocks(model)
    assert_close(answers(model, 24), expected)


@pytest.mark.parametrize(
    "config",
    [
        OPTConfig(vocab_size=64, hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=2,
                  num_attention_heads=2, max_position_embeddings=64, dropout=0.5, layerdrop=0.5),
        FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, attention_dropout=0.5),
    ],
    ids=["a number", "a module"],
)  # fmt: skip
def test_every_pass_of_a_model_in_training_has_the_same_probabilities(config: PreTrainedConfig, tmp_path: Path):
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    policy = PolicyConfig(activation_checkpointing=True)
    model = build_trainable(ModelConfig(path=str(tmp_path)), policy, LogprobModel, seed=1).model
    assert model.training  # else nothing would be checkpointed
    first, second = (model(input_ids=IDS, use_cache=False).logits for _ in range(2))
    assert torch.equal(first, second)
