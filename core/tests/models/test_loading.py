"""Models and tokenizers are loaded as they are configured, and what cannot be loaded is named."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ramet import ConfigError
from ramet.config.schema import Attention, Dtype, ModelConfig
from ramet.models.check import check_model
from ramet.models.loading import load_model, load_tokenizer, resolve_device

MakeFolder = Callable[..., Path]


def config(folder: Path, **options: object) -> ModelConfig:
    return ModelConfig(path=str(folder), device="cpu", **options)  # type: ignore[arg-type]


def edit(file: Path, **changes: object) -> None:
    """Change keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_good_folder_has_no_problems_and_loads(make_folder: MakeFolder) -> None:
    one = config(make_folder(), dtype=Dtype.BFLOAT16, attention=Attention.EAGER)
    assert check_model(one) == []
    model = load_model(one)
    assert model.dtype is torch.bfloat16 and not model.training
    assert model.config._attn_implementation == "eager"
    assert load_model(config(Path(one.path))).config._attn_implementation == "sdpa"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", Path("???")):
        (problem,) = check_model(config(path))
        assert problem.startswith("model.path: ") and str(path) in problem
    with pytest.raises(ConfigError, match=r"model\.path"):
        load_model(config(tmp_path / "nothing"))


def test_weights_that_the_files_lack_are_refused_instead_of_drawn_at_random(make_folder: MakeFolder) -> None:
    folder = make_folder()
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack 1 weights of the model .*: model\.norm\.weight"):
        load_model(config(folder))


def test_weights_of_other_shapes_are_refused(make_folder: MakeFolder) -> None:
    folder = make_folder()
    edit(folder / "config.json", hidden_size=32)
    with pytest.raises(ConfigError, match=r"model\.path: could not load a causal language model"):
        load_model(config(folder))


def test_a_tokenizer_without_pad_uses_eos_and_says_so(
    make_folder: MakeFolder, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_folder()
    edit(folder / "tokenizer_config.json", pad_token=None)
    with caplog.at_level(logging.INFO):
        tokenizer = load_tokenizer(config(folder))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert "no pad token" in caplog.text
    assert check_model(config(folder)) == []


def test_a_missing_chat_template_is_refused_and_a_file_may_give_it(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    (folder / "chat_template.jinja").unlink()
    (problem,) = check_model(config(folder))
    assert "no chat template" in problem and "model.chat_template" in problem
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    assert load_tokenizer(config(folder, chat_template=str(template))).chat_template == template.read_text()
    (problem,) = check_model(config(folder, chat_template=str(tmp_path / "none.jinja")))
    assert problem.startswith("model.chat_template: ") and "none.jinja" in problem


def test_a_tokenizer_folder_of_its_own_is_used_and_named(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder, other = make_folder(), make_folder("other")
    (folder / "tokenizer.json").unlink()
    assert check_model(config(folder, tokenizer=str(other))) == []
    (problem,) = check_model(config(folder, tokenizer=str(tmp_path / "nothing")))
    assert problem.startswith("model.tokenizer: ")


def test_devices_that_are_not_there_are_reported(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = make_folder()
    for device, words in (("tpu", "allowed: auto, cpu, cuda"), ("cuda", "no CUDA device")):
        one = ModelConfig(path=str(folder), device=device)
        assert words in check_model(one)[0]
        with pytest.raises(ConfigError, match=r"model\.device"):
            resolve_device(one)
    assert resolve_device(ModelConfig(path=str(folder))) == torch.device("cpu")


def test_flash_attention_is_refused_where_it_cannot_run(make_folder: MakeFolder) -> None:
    with pytest.raises(ConfigError, match=r"model\.attention: flash_attention_2 needs"):
        load_model(config(make_folder(), attention=Attention.FLASH))
