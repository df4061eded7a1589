"""What is wrong with a model folder is found without loading weights, and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet import ConfigError
from ramet.config.schema import ModelConfig
from ramet.models.check import check_model
from ramet.models.loading import load_model
from ramet.models.tiny import make_tiny_model

MakeFolder = Callable[..., Path]


def config(folder: Path, **options: object) -> ModelConfig:
    return ModelConfig(path=str(folder), device="cpu", **options)  # type: ignore[arg-type]


def edit(file: Path, **changes: object) -> None:
    """Change keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_missing_config_and_weights_are_both_reported(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "config.json").unlink()
    (folder / "model.safetensors").unlink()
    problems = "\n".join(check_model(config(folder)))
    assert "has no config.json\n" in problems and "has no weights" in problems
    (folder / "adapter_config.json").write_text("{}")
    assert "has no config.json; it has a LoRA adapter" in "\n".join(check_model(config(folder)))


def test_a_folder_without_a_vocabulary_is_reported(make_folder: MakeFolder) -> None:
    """transformers itself would make an empty tokenizer without a warning."""
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


def test_a_name_of_the_hub_that_was_taken_for_a_path_is_told_how_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen").mkdir()
    [problem] = check_model(config(Path("Qwen/Qwen3-4B")))
    assert "'Qwen/Qwen3-4B' is not a folder" in problem and "(hf://Qwen/Qwen3-4B is the one of the hub)" in problem


def test_a_mistyped_folder_is_told_with_the_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "smollm2").mkdir()
    [problem] = check_model(config(tmp_path / "smolm2"))
    assert problem.endswith(f"Did you mean '{tmp_path / 'smollm2'}'?")


@pytest.mark.parametrize(
    ("left", "words"),
    [(0, "not a readable safetensors file (0 bytes)"), (50, "not a readable"), (-7, "its header says")],
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


def test_a_tokenizer_with_more_tokens_than_the_model_is_reported(make_folder: MakeFolder) -> None:
    folder = make_folder()
    edit(folder / "config.json", vocab_size=200)
    (problem,) = check_model(config(folder))
    assert problem.startswith("model.tokenizer: ") and "only 200 embeddings" in problem


def test_a_generation_config_that_could_not_be_saved_again_is_a_problem_before_the_training(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "m", hidden=32, layers=1, intermediate=32, heads=2)
    (tmp_path / "m/generation_config.json").write_text('{"do_sample": false, "temperature": 0.5}')
    [problem] = check_model(ModelConfig(path=str(tmp_path / "m")))
    assert "generation_config.json" in problem and "temperature" in problem


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (["model/config.json"], "its model is 'runs/a/model'"),
        (
            ["checkpoints/step_000002/x"],
            "it has no model yet, and `ramet export runs/a FOLDER` writes one of its newest checkpoint",
        ),
        ([], "no model is in it"),
    ],
)
def test_the_directory_of_a_run_leads_to_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("manifest.json", "config.yaml", *left):
        (Path("runs/a") / name).parent.mkdir(parents=True, exist_ok=True)
        (Path("runs/a") / name).touch()
    assert check_model(config(Path("runs/a"))) == [f"model.path: 'runs/a' is the directory of a run; {told}"]
    assert check_model(config(Path("runs/b"))) == [
        "model.path: 'runs/b' is not a folder; give a Hugging Face model folder, or OWNER/NAME of the hub (hf://runs/b "
        "is the one of the hub)"
    ]


def test_an_empty_folder_is_told_in_words_of_ours(tmp_path: Path) -> None:
    """transformers would ask for sentencepiece."""
    (_, _, problem) = check_model(config(tmp_path))
    assert problem == (
        f"model.path: '{tmp_path}' holds no tokenizer; looked for tokenizer*, vocab*, merges.txt, *.model, *.tiktoken"
    )
