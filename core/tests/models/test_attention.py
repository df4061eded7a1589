"""Which attention a model is loaded with, and what is said where it cannot be."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig

import ramet.models.attention
from ramet.config.schema import Attention, Dtype, ModelConfig
from ramet.errors import ConfigError, MissingHere
from ramet.models.attention import COMPILER_OFF, attention_for, check_attention

SMALL = AutoConfig.for_model("qwen2", hidden_size=24, num_attention_heads=4)
ALLOWED = "; allowed here: auto, sdpa, eager"


@pytest.fixture(autouse=True)
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMPILER_OFF, raising=False)  # a test of vLLM's may have set it in this process
    monkeypatch.setattr(ramet.models.attention, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(ramet.models.attention, "find_spec", lambda name: name)


def config(attention: str, **options: object) -> ModelConfig:
    return ModelConfig(path="m", attention=Attention(attention), **{"dtype": Dtype.BFLOAT16, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("attention", ["auto", "sdpa", "eager", "flash_attention_2", "varlen", "flex"])
def test_nothing_is_said_where_all_is_there(attention: str) -> None:
    assert check_attention(config(attention), device="cuda") == []
    assert check_attention(config(attention), device=None) == []
    expected = [] if attention in ("auto", "sdpa", "eager") else ["a CUDA device instead of 'cpu'"]
    found = check_attention(config(attention), device="cpu")
    assert found == [f"model.attention: {attention} needs {one}{ALLOWED}" for one in expected]
    assert all(isinstance(problem, MissingHere) for problem in found)


@pytest.mark.parametrize("attention", ["flash_attention_2", "varlen"])
def test_half_precision_is_asked_for(attention: str) -> None:
    found = check_attention(config(attention, dtype=Dtype.FLOAT32), device="cpu")
    needed = "a CUDA device instead of 'cpu' and model.dtype=bfloat16 instead of float32"
    assert found == [f"model.attention: {attention} needs {needed}{ALLOWED}"]
    assert not isinstance(found[0], MissingHere)


def test_small_heads_are_named_before_the_start() -> None:
    found = check_attention(config("flex"), device=None, described=SMALL)
    needed = "attention heads of at least 16 numbers instead of the model's 6"
    assert found == [f"model.attention: flex needs {needed}{ALLOWED}, flash_attention_2, varlen"]


def test_what_is_not_installed_or_switched_off_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ramet.models.attention, "find_spec", lambda _: None)
    monkeypatch.setattr(ramet.models.attention, "is_flash_attn_2_available", lambda: False)
    monkeypatch.setattr(ramet.models.attention, "has_varlen", lambda: False)
    monkeypatch.setenv(COMPILER_OFF, "1")
    needs = {
        "flash_attention_2": "the package flash-attn",
        "varlen": "a torch with torch.nn.attention.varlen (2.11 has it)",
        "flex": "the package triton and torch's compiler, which TORCHDYNAMO_DISABLE=1 switches off in this process",
    }
    for attention, needed in needs.items():
        assert check_attention(config(attention), device="cuda") == [
            f"model.attention: {attention} needs {needed}{ALLOWED}"
        ]


def test_a_cpu_that_was_asked_for_is_no_machine_that_lacks_something() -> None:
    found = check_attention(config("flex", device="cpu"), device="cpu")
    assert len(found) == 1 and not isinstance(found[0], MissingHere)


def test_auto_takes_flash_attention_where_it_is_installed_and_torchs_own_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, cpu, float32 = torch.device("cuda"), torch.device("cpu"), config("auto", dtype=Dtype.FLOAT32)
    assert attention_for(config("auto"), cuda, SMALL) == "flash_attention_2"
    monkeypatch.setattr(ramet.models.attention, "is_flash_attn_2_available", lambda: False)
    assert attention_for(config("auto"), cuda, SMALL) == "varlen"
    assert attention_for(float32, cuda, SMALL) == attention_for(config("auto"), cpu, SMALL) == "sdpa"
    for other in (AutoConfig.for_model("gemma2"), AutoConfig.for_model("qwen2", use_sliding_window=True)):
        assert attention_for(config("auto"), cuda, other) == "sdpa"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert attention_for(config("auto"), cuda, SMALL) == "sdpa"
    with pytest.raises(ConfigError, match=r"^model\.attention: flex needs a CUDA device instead of 'cpu'; allowed"):
        attention_for(config("flex"), cpu, SMALL)
