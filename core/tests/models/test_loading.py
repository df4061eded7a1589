"""What is wrong with a model folder is found without loading weights, and named."""

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
from ramet.models.loading import check_model, load_model, load_tokenizer, resolve_device
from ramet.models.tiny import make_tiny_model

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


def test_missing_config_and_weights_are_both_reported(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "config.json").unlink()
    (folder / "model.safetensors").unlink()
    problems = "\n".join(check_model(config(folder)))
    assert "has no config.json" in problems and "has no weights" in problems


def test_a_folder_without_a_vocabulary_is_reported(make_folder: MakeFolder) -> None:
    """transformers itself would make an empty tokenizer and say nothing."""
    folder = make_folder()
    for file in folder.glob("token*"):
        file.unlink()
    (problem,) = check_model(config(folder))
    assert problem.startswith("model.path: ") and "holds no tokenizer; looked for" in problem


def test_an_index_that_names_missing_files_is_reported(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert check_model(config(folder)) == [
        "model.path: model.safetensors.index.json names files that are missing: two.safetensors"
    ]
    index.write_text("{")
    assert "has no weight_map" in check_model(config(folder))[0]


def test_a_name_of_the_hub_is_told_how_to_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [problem] = check_model(config(Path("Qwen/Qwen3-4B")))
    assert "is not a folder" in problem and "`hf download Qwen/Qwen3-4B --local-dir FOLDER`" in problem


@pytest.mark.parametrize(
    ("left", "words"), [(0, "no readable safetensors file (0 bytes)"), (50, "no readable"), (-7, "its header says")]
)
def test_a_weight_file_that_is_cut_short_is_found_without_reading_it(
    make_folder: MakeFolder, left: int, words: str
) -> None:
    file = make_folder() / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    [problem] = check_model(config(file.parent))
    assert problem.startswith(f"model.path: {file} ") and words in problem
    with pytest.raises(ConfigError, match=r"model\.path: could not load"):
        load_model(config(file.parent))


def test_a_shard_that_is_cut_short_is_named(make_folder: MakeFolder) -> None:
    folder = make_folder()
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    (folder / "one.safetensors").write_bytes(whole)
    (folder / "two.safetensors").write_bytes(whole[:-1])
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    [problem] = check_model(config(folder))
    assert f"two.safetensors has {len(whole) - 1} bytes, its header says {len(whole)}; fetch it again" in problem


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


def test_code_of_the_models_own_runs_only_if_it_is_trusted(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "mine.py").write_text("raise SystemExit('it ran')")
    edit(folder / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.Mine"})
    [problem] = check_model(config(folder))
    assert str(folder) in problem and "set model.trust_remote_code=true" in problem


def test_a_tokenizer_without_eos_is_refused(make_folder: MakeFolder) -> None:
    folder = make_folder()
    edit(folder / "tokenizer_config.json", eos_token=None)
    (problem,) = check_model(config(folder))
    assert "no end-of-sequence token" in problem and str(folder) in problem


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


def test_a_tokenizer_with_more_tokens_than_the_model_is_reported(make_folder: MakeFolder) -> None:
    folder = make_folder()
    edit(folder / "config.json", vocab_size=200)
    (problem,) = check_model(config(folder))
    assert problem.startswith("model.tokenizer: ") and "only 200 embeddings" in problem


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


def test_a_generation_config_that_could_not_be_saved_again_is_a_problem_before_the_training(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "m", hidden=32, layers=1, intermediate=32, heads=2)
    (tmp_path / "m/generation_config.json").write_text('{"do_sample": false, "temperature": 0.5}')
    [problem] = check_model(ModelConfig(path=str(tmp_path / "m")))
    assert "generation_config.json" in problem and "temperature" in problem
