"""From a run that trained an adapter to a folder that peft loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ramet.cli import main
from ramet.errors import ConfigError, InfraError
from ramet.export import job
from ramet.export.job import export_adapter, export_run
from ramet.policy.checkpoint.state import Progress, stage_state, write_state
from ramet.policy.checkpoint.store import Checkpoints
from ramet.policy.host_memory import HostBuffers
from ramet.policy.lora import adapter_weights, add_adapter

peft = pytest.importorskip("peft")
RANK = 2


@pytest.fixture
def trained(base: Path, run: Path) -> PreTrainedModel:
    """The adapted model whose adapter is in the checkpoint of step 3 of `run`."""
    model = add_adapter(AutoModelForCausalLM.from_pretrained(base).eval(), RANK)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.2)
    staged = stage_state(
        model, torch.optim.AdamW([torch.zeros(1)]), Progress(), HostBuffers(pin=False), rank=0, world_size=1
    )
    Checkpoints(run / "checkpoints", keep=2).save(3, lambda folder: write_state(folder, staged))
    return model


def kept_adapter(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in adapter_weights(model)}


def logits(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(30)[None], use_cache=False).logits


def test_peft_loads_the_adapter_and_answers_as_the_trained_policy(
    trained: PreTrainedModel, run: Path, base: Path, tmp_path: Path
):
    exported = export_adapter(run, tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(base)
    loaded = peft.PeftModel.from_pretrained(plain, tmp_path / "out").eval()
    assert torch.equal(logits(loaded), logits(trained))
    assert exported.n_parameters == sum(t.numel() for t in kept_adapter(trained).values())
    assert exported.comparison.largest < 1e-5 and exported.recorded and exported.source.name == "step_000003"


def test_the_code_of_its_card_runs(
    trained: PreTrainedModel, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    export_adapter(run, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    code = Path("out/README.md").read_text().split("```python\n")[1].split("\n```")[0]
    names: dict[str, object] = {}
    exec(code.replace("max_new_tokens=1024", "max_new_tokens=2, min_new_tokens=2"), names)
    assert names["output"].shape[1] == names["inputs"]["input_ids"].shape[1] + 2


def test_the_folder_holds_the_adapter_its_description_and_the_tokenizer_and_no_other_weight(
    trained: PreTrainedModel, run: Path, base: Path, tmp_path: Path
):
    export_adapter(run, tmp_path / "out")
    described = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (described["r"], described["lora_alpha"], described["base_model_name_or_path"]) == (
        RANK,
        2 * RANK,
        str(base),
    )
    assert set(described["target_modules"]) == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
    }  # fmt: skip
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors")] == ["adapter_model.safetensors"]
    kept = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in kept_adapter(trained).items())
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def test_the_merged_folder_answers_as_the_adapter_on_its_base(trained: PreTrainedModel, run: Path, tmp_path: Path):
    export_run(run, tmp_path / "out")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert (logits(merged) - logits(trained)).abs().max() < 1e-5


def test_a_run_without_an_adapter_is_told_so(run: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"step_000002 has complete weights, .*; leave --adapter out"):
        export_adapter(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_adapter_that_comes_back_otherwise_is_not_left_behind(
    trained: PreTrainedModel, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    load = job.load_adapted

    def load_changed(config, folder):
        model = load(config, folder)
        model.get_parameter("model.layers.0.mlp.up_proj.lora_B.default.weight").data[0, 0] += 1e-6
        return model

    monkeypatch.setattr(job, "load_adapted", load_changed)
    with pytest.raises(InfraError, match=r"1 weights differ, such as .*up_proj\.lora_B\.weight"):
        export_adapter(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_writes_the_adapter(trained: PreTrainedModel, run: Path, tmp_path: Path, capsys):
    assert main(["export", "--adapter", str(run), str(tmp_path / "out")]) == 0
    assert "step_000003" in capsys.readouterr().out
    assert (tmp_path / "out" / "adapter_config.json").is_file()


@pytest.mark.parametrize("other", [["--from-verl"], ["--dtype", "bfloat16"]])
def test_what_makes_no_sense_beside_an_adapter_is_refused(other: list[str], tmp_path: Path, capsys):
    assert main(["export", "--adapter", *other, str(tmp_path), str(tmp_path / "out")]) == 1
    assert f"leave {other[0]} out" in capsys.readouterr().err
