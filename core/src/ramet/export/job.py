"""Write a Hugging Face folder, load it again, and compare it with what it was made from.

It is written to a temporary folder next to its path and renamed after the comparison, so a folder that is there was
checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from ramet.config.schema import Attention, Dtype, ModelConfig, RunConfig
from ramet.errors import ConfigError, InfraError, raise_all
from ramet.export.check import (
    Comparison,
    SampleSequence,
    compare,
    different_tensors,
    different_weights,
    logprobs,
    random_sequences,
    recorded_sequences,
)
from ramet.export.folder import new_folder, require_new
from ramet.export.model import build_model
from ramet.export.verl import model_folder, read_shards
from ramet.models.loading import DTYPES, load_model, load_tokenizer
from ramet.models.torch_setup import set_up_torch
from ramet.policy.checkpoint.state import saved_weights
from ramet.policy.checkpoint.store import NAME, Checkpoint, best_of, read_score, verify
from ramet.policy.errors import CheckpointError
from ramet.policy.lora import FILE_A, AdapterMerger, adapter_weights, adapters, check_lora, lora_config
from ramet.runs.manifest import SavedRun, read_run
from ramet.runs.selection import Selection

ADAPTER_WEIGHTS = "adapter_model.safetensors"  # as peft names it


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    folder: Path
    source: Path  # the checkpoint, or the folder of the shards
    dtype: Dtype
    n_parameters: int
    recorded: bool  # compared on rollouts of the run; False: on random tokens
    comparison: Comparison


def export_run(
    run: Path,
    out: Path,
    *,
    dtype: Dtype | None = None,
    step: int | None = None,
    model: Path | None = None,
    trust_remote_code: bool = False,
) -> Exported:
    """The newest whole checkpoint, or that of `step`. `dtype` None: the run's; `model`: where its base model is now.

    `trust_remote_code` lets the code run that the base model's folder brings; what the run's configuration has for it
    does not count. Raises `ConfigError`, and `InfraError` if the folder cannot be written or is not the trained policy.
    """
    _begin(out)
    saved, config, checkpoint = _find(run, step, model, trust_remote_code)
    weights = _read(checkpoint)
    adapter = dict(adapters(weights))
    trained = build_model(config, _merged(adapter, config) if adapter else weights, str(checkpoint.folder))
    recorded = recorded_sequences(run, checkpoint.step)
    sequences = recorded or random_sequences(trained.config.vocab_size)
    config = dataclasses.replace(config, dtype=dtype or config.dtype)
    comparison = _export(trained, config, out, sequences, saved.temperature)
    if (selection := _selection(run, checkpoint, saved.valid)) is not None:
        selection.write(out)
    return _exported(trained.parameters(), out, checkpoint.folder, config.dtype, bool(recorded), comparison)


def export_adapter(
    run: Path, out: Path, *, step: int | None = None, model: Path | None = None, trust_remote_code: bool = False
) -> Exported:
    """Export only the adapter of a run with `policy.lora_rank`, in float32; peft also needs the base.

    Raises as `export_run`.
    """
    _begin(out)
    saved, config, checkpoint = _find(run, step, model, trust_remote_code)
    adapter = dict(adapters(_read(checkpoint)))
    raise_all(check_adapter(adapter, checkpoint.folder))
    trained = build_model(config, _merged(adapter, config), str(checkpoint.folder))
    recorded = recorded_sequences(run, checkpoint.step)
    sequences = recorded or random_sequences(trained.config.vocab_size)
    before = logprobs(trained, sequences, saved.temperature)
    config = dataclasses.replace(config, dtype=Dtype.FLOAT32)
    with new_folder(out) as folder:
        write_adapter(folder, adapter, config)
        again = load_adapted(_comparable(config), folder)
        _require_same(different_tensors(adapter, dict(adapter_weights(again))), out)
        after = logprobs(again, sequences, saved.temperature)
        comparison = _passed(compare(before, before, after, sequences, config.dtype), config.dtype, out)
    return _exported(adapter.values(), out, checkpoint.folder, config.dtype, bool(recorded), comparison)


def export_verl(
    shards: Path,
    out: Path,
    *,
    dtype: Dtype = Dtype.BFLOAT16,
    model: Path | None = None,
    trust_remote_code: bool = False,
) -> Exported:
    """The model of a verl checkpoint. `model`: a folder with configuration and tokenizer, if not among the shards.

    Raises as `export_run`.
    """
    _begin(out)
    if model is not None and not (model / "config.json").is_file():
        raise ConfigError(f"--model: {model} has no config.json; give a Hugging Face model folder")
    config = ModelConfig(path=str(model or model_folder(shards)), dtype=dtype, trust_remote_code=trust_remote_code)
    trained = build_model(config, read_shards(shards), str(shards))
    sequences = random_sequences(trained.config.vocab_size)
    comparison = _export(trained, config, out, sequences, temperature=1.0)
    return _exported(trained.parameters(), out, shards, dtype, False, comparison)


def find_checkpoint(root: Path, step: int | None) -> Checkpoint:
    """The newest whole one, or that of `step`. Only reads, since the run may still be running. Raises `ConfigError`."""
    steps = sorted(int(match[1]) for path in root.glob("step_*") if (match := NAME.fullmatch(path.name)))
    if step is not None and step not in steps:
        raise ConfigError(f"--step={step}: no such checkpoint in {root}; there: {', '.join(map(str, steps)) or 'none'}")
    broken: list[str] = []
    for number in [step] if step is not None else reversed(steps):
        folder = root / f"step_{number:06d}"
        problems = verify(folder)
        if not problems:
            return Checkpoint(step=number, folder=folder)
        broken += problems
    raise ConfigError(
        "; ".join([f"{root} holds no whole checkpoint{'' if step is None else f' of step {step}'}", *broken])
    )


def _located(saved: SavedRun, model: Path | None) -> ModelConfig:
    config = saved.model if model is None else dataclasses.replace(saved.model, path=str(model))
    if not (Path(config.path) / "config.json").is_file():
        raise ConfigError(
            f"{'model.path' if model is None else '--model'}: {config.path} has no config.json (working directory: "
            f"{Path.cwd()}); name the folder of the model that the run began with by --model"
        )
    return config


def _find(
    run: Path, step: int | None, model: Path | None, trust_remote_code: bool
) -> tuple[SavedRun, ModelConfig, Checkpoint]:
    saved = read_run(run)
    if saved.job != "train":
        raise ConfigError(f"{run} is a `ramet {saved.job}` run, and only `ramet train` runs have a policy to export")
    config = dataclasses.replace(_located(saved, model), trust_remote_code=trust_remote_code)
    return saved, config, find_checkpoint(run / "checkpoints", step)


def _selection(run: Path, checkpoint: Checkpoint, valid: tuple[str, ...]) -> Selection | None:
    """How a validation chose this checkpoint; None: it is not the best of those that are there."""
    score = read_score(checkpoint.folder)
    if score is None:
        return None
    folders = sorted(path for path in (run / "checkpoints").glob("step_*") if NAME.fullmatch(path.name))
    best = best_of([(folder, read_score(folder)) for folder in folders], score.metric)
    if best is None or best[0] != checkpoint.folder:
        return None
    return Selection(step=checkpoint.step, metric=score.metric, value=score.value, data=valid)


def _read(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The whole weights, whatever number of ranks wrote them; under LoRA the adapter's."""
    try:
        return saved_weights(checkpoint.folder)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error


def _merged(adapter: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    return dict(AdapterMerger(Path(config.path))(adapter.items()))


def _export(
    trained: PreTrainedModel, config: ModelConfig, out: Path, sequences: list[SampleSequence], temperature: float
) -> Comparison:
    """Write and compare the model. Rounds `trained` to the wanted type."""
    tokenizer = load_tokenizer(config)
    before = logprobs(trained, sequences, temperature)
    with new_folder(out) as folder:
        for parameter in trained.parameters():  # `to` would round the frequencies of positions too
            parameter.data = parameter.data.to(DTYPES[config.dtype])
        written = before if config.dtype is Dtype.FLOAT32 else logprobs(trained, sequences, temperature)
        trained.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        again = load_model(
            dataclasses.replace(_comparable(config), path=str(folder), tokenizer=None, chat_template=None)
        )
        _require_same(different_weights(trained, again), out)
        after = logprobs(again, sequences, temperature)
        return _passed(compare(before, written, after, sequences, config.dtype), config.dtype, out)


def check_adapter(adapter: Mapping[str, Tensor], where: Path) -> list[str]:
    """Return why there is no adapter to write."""
    if not adapter:
        return [f"--adapter: {where} holds whole weights, as runs with policy.lora_rank=0 do; leave --adapter out"]
    return check_lora()


def write_adapter(folder: Path, adapter: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Weights under peft's names, configuration and tokenizer. The rank and the layers are read from the tensors."""
    factors = {name.removesuffix(FILE_A): tensor for name, tensor in adapter.items() if name.endswith(FILE_A)}
    targets = {layer.rpartition(".")[2] for layer in factors}
    rank = next(iter(factors.values())).shape[0]
    described = lora_config(targets, rank, base=str(Path(config.path).resolve()))
    described.inference_mode = True
    described.save_pretrained(str(folder))
    save_file(
        {name: tensor.contiguous() for name, tensor in adapter.items()}, folder / ADAPTER_WEIGHTS, {"format": "pt"}
    )
    load_tokenizer(config).save_pretrained(folder)


def load_adapted(config: ModelConfig, folder: Path) -> PreTrainedModel:
    """The base model of `config` with the adapter in `folder`, as peft puts them together."""
    from peft import PeftModel

    adapted: Any = PeftModel.from_pretrained(load_model(config), folder)
    loaded: PreTrainedModel = adapted.eval().get_base_model()
    return loaded


def _comparable(config: ModelConfig) -> ModelConfig:
    """Return the configuration with the attention of `build_model`: flash attention rounds otherwise."""
    attention = Attention.EAGER if config.attention is Attention.EAGER else Attention.SDPA
    return dataclasses.replace(config, attention=attention)


def _require_same(different: list[str], out: Path) -> None:
    if different:
        raise InfraError(f"{out}: not written: read back, {len(different)} weights differ, such as {different[0]}")


def _passed(comparison: Comparison, dtype: Dtype, out: Path) -> Comparison:
    if not comparison.passed:
        raise InfraError(
            f"{out}: not written: read back, the folder's log-probabilities differ by up to {comparison.read_back:.3g} "
            f"from those of the same weights; at most {comparison.threshold:g} is allowed in {dtype}"
        )
    return comparison


def _begin(out: Path) -> None:
    require_new(out)
    set_up_torch(RunConfig())


def _exported(
    weights: Iterable[Tensor], out: Path, source: Path, dtype: Dtype, recorded: bool, comparison: Comparison
) -> Exported:
    return Exported(
        folder=out,
        source=source,
        dtype=dtype,
        n_parameters=sum(tensor.numel() for tensor in weights),
        recorded=recorded,
        comparison=comparison,
    )
