"""SFT with LoRA: what is trained, what is left, what is resumed and exported. Over two processes: test_torchrun.py."""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import AutoModelForCausalLM, AutoTokenizer

from ramet.errors import ConfigErrors
from ramet.export.job import export_adapter, export_run
from ramet.planning.memory_sft import SftInputs, sft_state
from ramet.policy.lora import AdapterMerger
from ramet.sft.checkpoints import SftLayout, newest_complete
from ramet.sft.encode import Example
from ramet.sft.output import ADAPTER
from ramet.sft.trainer import train

peft = pytest.importorskip("peft")
LORA = ("sft.lora_rank=4", "sft.lr=1e-2", "sft.trainer.max_steps=10", "sft.trainer.save_steps=4")


@pytest.fixture(scope="module")
def run(sft_run: Callable[..., Path]) -> Path:
    return sft_run("lora", *LORA)


def same(one: Path, other: Path) -> bool:
    left, right = load_file(one), load_file(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_the_adapter_alone_is_trained_and_the_model_is_merged_with_it(run: Path, tiny_model: Path, losses: Any) -> None:
    values = losses(run)
    assert values[-1] < values[0] - 0.3
    adapter = load_file(run / ADAPTER / "adapter_model.safetensors")
    merged, model = dict(AdapterMerger(tiny_model)(adapter.items())), load_file(run / "model/model.safetensors")
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, merged[name], rtol=0, atol=1e-6)
    base = load_file(tiny_model / "model.safetensors")
    changed = {name for name in model if not torch.equal(model[name], base[name])}
    assert len(changed) == 2 * 7 and all("proj" in name for name in changed)
    assert AutoTokenizer.from_pretrained(run / ADAPTER).chat_template is not None


def test_peft_loads_what_is_left(run: Path, tiny_model: Path) -> None:
    adapted = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), run / ADAPTER).eval()
    merged = AutoModelForCausalLM.from_pretrained(run / "model").eval()
    ids = torch.arange(40)[None]
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, merged(ids).logits, rtol=1e-4, atol=1e-5)


def test_checkpoints_hold_the_adapter_alone_and_a_resume_is_exact(
    run: Path, sft_run: Callable[..., Path], losses: Any
) -> None:
    checkpoint = newest_complete(run / "checkpoints", SftLayout.read(run / "checkpoints"))
    assert checkpoint is not None and checkpoint.name == "checkpoint-8"
    assert not list(checkpoint.glob("model*.safetensors"))
    again = run.parent / "again"
    shutil.copytree(run, again)
    shutil.rmtree(again / "model")
    (again / "sft.json").unlink()
    sft_run("again", *LORA)
    assert json.loads((again / "sft.json").read_text())["resumed_step"] == 8
    assert losses(again) == losses(run)
    assert (again / "model/model.safetensors").read_bytes() == (run / "model/model.safetensors").read_bytes()


def test_exports_are_merged_or_the_adapter_and_of_any_checkpoint(run: Path, tmp_path: Path) -> None:
    assert export_run(run, tmp_path / "merged").source == run / "model"
    export_adapter(run, tmp_path / "adapter")
    assert same(tmp_path / "adapter/adapter_model.safetensors", run / ADAPTER / "adapter_model.safetensors")
    export_adapter(run, tmp_path / "earlier", step=8)
    saved = run / "checkpoints/checkpoint-8/adapter_model.safetensors"
    assert same(tmp_path / "earlier/adapter_model.safetensors", saved)
    export_run(run, tmp_path / "merged8", step=8)
    assert not same(tmp_path / "merged8/model.safetensors", run / "model/model.safetensors")


def test_what_is_held_is_what_the_plan_says_to_the_byte(
    tiny_model: Path, tmp_path: Path, recorded: Any, sft_inputs: Callable[..., SftInputs]
) -> None:
    inputs, held = sft_inputs("none"), {}
    config = inputs.config
    config.sft.lora_rank, config.sft.trainer = 4, {"max_steps": 1}
    model = AutoModelForCausalLM.from_pretrained(tiny_model)

    def look(adam: torch.optim.Optimizer, *_: object) -> None:
        held["weights"] = sum(parameter.nbytes for parameter in model.parameters())
        held["gradients"] = sum(one.grad.nbytes for one in model.parameters() if one.grad is not None)
        held["optimiser"] = sum(v.nbytes for one in adam.state.values() for v in one.values() if v.dim())

    hook = register_optimizer_step_post_hook(look)
    try:
        ids = list(range(97, 109))
        examples = [Example(token_ids=array("i", ids), trained=array("b", [0] * 6 + [1] * 6))]
        train(model, examples, config, tmp_path, tracker=recorded)
    finally:
        hook.remove()
    assert held == sft_state(inputs)


def test_an_adapter_of_another_rank_is_not_continued(run: Path, sft_run: Callable[..., Path]) -> None:
    with pytest.raises(ConfigErrors, match=r"sft\.lora_rank=4, and now it is .*sft\.lora_rank=8"):
        sft_run("lora", *LORA, "sft.lora_rank=8", "run.allow_config_change=true")


def test_in_bfloat16_the_base_is_rounded_and_the_adapter_is_not(sft_run: Callable[..., Path], losses: Any) -> None:
    run = sft_run("half", *LORA, "model.dtype=bfloat16")
    values = losses(run)
    assert values[-1] < values[0] - 0.3
    assert {tensor.dtype for tensor in load_file(run / "model/model.safetensors").values()} == {torch.bfloat16}
    adapter = load_file(run / ADAPTER / "adapter_model.safetensors")
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in adapter.values())
    assert {tensor.dtype for tensor in adapter.values()} == {torch.float32}
