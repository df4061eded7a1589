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

from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from ramet.config.schema import Attention, Dtype, ModelConfig, RunConfig
from ramet.errors import ConfigError, InfraError, RametError, raise_all
from ramet.export.card import public_name, write_card
from ramet.export.check import (
    Comparison,
    SampleSequence,
    compare,
    different_tensors,
    different_weights,
    logprobs,
    random_sequences,
    recorded_sequences,
    same_tokens,
)
from ramet.export.folder import new_folder, require_new
from ramet.export.model import build_model
from ramet.export.verl import actor_folder, model_folder, read_shards
from ramet.hub import whole_copy
from ramet.models.loading import DTYPES, load_model, load_tokenizer
from ramet.models.torch_setup import set_up_torch
from ramet.models.weight_files import WeightFiles
from ramet.policy.checkpoint.state import saved_weights
from ramet.policy.checkpoint.store import NAME, Checkpoint, best_of, read_score, verify
from ramet.policy.errors import CheckpointError
from ramet.policy.lora import ADAPTER_WEIGHTS, AdapterMerger, adapter_weights, adapters, check_lora, save_adapter
from ramet.runs.hub_inputs import local_model, recorded_name
from ramet.runs.manifest import SavedRun, read_run
from ramet.runs.selection import Selection
from ramet.sft.checkpoints import SftLayout, chosen_checkpoint, step_of, weights_of
from ramet.sft.output import ADAPTER, read_summary


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
    model: Path | str | None = None,
    trust_remote_code: bool = False,
    name: str | None = None,
) -> Exported:
    """Return the newest complete checkpoint, or the one of `step`; of a finished `ramet sft` its model. `dtype` None:
    the run's;
    `model`: where its base model is now, a folder or a name of the hub; `name`: what the model card calls it, if not by
    its folder.

    `trust_remote_code` lets the code run that the base model's folder brings; what the run's configuration has for it
    does not count. Raises `ConfigError`, and `InfraError` if the folder cannot be written or is not the trained policy.
    """
    _begin(out)
    saved, config, source = _find(run, step, model, trust_remote_code)
    if source.adapter:
        config = dataclasses.replace(config, path=whole_copy(config.path))
    weights = _merged(source.adapter, config) if source.adapter else source.weights
    trained = build_model(config, weights, str(source.folder))
    recorded = recorded_sequences(run, source.step)
    sequences = recorded or random_sequences(trained.config.vocab_size)
    config = dataclasses.replace(config, dtype=dtype or config.dtype)
    with new_folder(out) as folder:
        comparison = _export(trained, config, folder, out, sequences, saved.temperature)
        if saved.job == "train" and (selection := _selection(run, source, saved.valid)) is not None:
            selection.write(folder)
        write_card(folder, name or out.resolve().name, base=_base(saved, model), run=run, step=source.step)
    return _exported(trained.parameters(), out, source.folder, config.dtype, bool(recorded), comparison)


def export_adapter(
    run: Path,
    out: Path,
    *,
    step: int | None = None,
    model: Path | str | None = None,
    trust_remote_code: bool = False,
    name: str | None = None,
) -> Exported:
    """Export only the adapter of a run with `policy.lora_rank` or `sft.lora_rank`, in float32; peft also needs the
    base.

    Raises as `export_run`.
    """
    _begin(out)
    saved, config, source = _find(run, step, model, trust_remote_code, only_adapter=True)
    adapter = source.adapter
    raise_all(check_adapter(adapter, source.folder))
    config = dataclasses.replace(config, path=whole_copy(config.path))
    trained = build_model(config, _merged(adapter, config), str(source.folder))
    recorded = recorded_sequences(run, source.step)
    sequences = recorded or random_sequences(trained.config.vocab_size)
    before = logprobs(trained, sequences, saved.temperature)
    config = dataclasses.replace(config, dtype=Dtype.FLOAT32)
    with new_folder(out) as folder:
        save_adapter(folder, adapter, config.path, recorded_name(saved.model.path))
        _write_tokenizer(config, folder, out)
        again = load_adapted(_comparable(config), folder)
        _require_same(different_tensors(adapter, dict(adapter_weights(again))), out)
        after = logprobs(again, sequences, saved.temperature)
        comparison = _passed(compare(before, before, after, sequences, config.dtype), config.dtype, out)
        write_card(folder, name or out.resolve().name, base=config, run=run, step=source.step, adapter=True)
    return _exported(adapter.values(), out, source.folder, config.dtype, bool(recorded), comparison)


def export_verl(
    shards: Path,
    out: Path,
    *,
    dtype: Dtype = Dtype.BFLOAT16,
    model: Path | str | None = None,
    trust_remote_code: bool = False,
    name: str | None = None,
) -> Exported:
    """The model of a verl checkpoint, of a step or of its actor. `model`: a folder, or name of the hub, with
    configuration and tokenizer, if they are not among the shards.

    Raises as `export_run`.
    """
    _begin(out)
    if model is not None:
        model = local_model(str(model), "--model", weights=False)
        if not (Path(model) / "config.json").is_file():
            raise ConfigError(f"--model: {model} has no config.json; give a Hugging Face model folder")
    shards = actor_folder(shards)
    config = ModelConfig(path=str(model or model_folder(shards)), dtype=dtype, trust_remote_code=trust_remote_code)
    trained = build_model(config, read_shards(shards), str(shards))
    sequences = random_sequences(trained.config.vocab_size)
    with new_folder(out) as folder:
        comparison = _export(trained, config, folder, out, sequences, temperature=1.0)
        write_card(folder, name or out.resolve().name, base=config)
    return _exported(trained.parameters(), out, shards, dtype, False, comparison)


def find_checkpoint(root: Path, step: int | None) -> Checkpoint:
    """Return the newest complete one, or `step`'s. Only reads: the run may be running. Raises `ConfigError`."""
    steps = sorted(int(match[1]) for path in root.glob("step_*") if (match := NAME.fullmatch(path.name)))
    if step is not None and step not in steps:
        raise ConfigError(f"step {step}: no such checkpoint in {root}; there: {', '.join(map(str, steps)) or 'none'}")
    broken: list[str] = []
    for number in [step] if step is not None else reversed(steps):
        folder = root / f"step_{number:06d}"
        problems = verify(folder)
        if not problems:
            return Checkpoint(step=number, folder=folder)
        broken += problems
    raise ConfigError(
        "; ".join([f"{root} has no complete checkpoint{'' if step is None else f' of step {step}'}", *broken])
    )


def _located(saved: SavedRun, model: Path | str | None) -> ModelConfig:
    """The run's model on this machine; of one of the hub without its weights, which only an adapter needs."""
    config = saved.model if model is None else dataclasses.replace(saved.model, path=str(model))
    key = "model.path" if model is None else "--model"
    config = dataclasses.replace(config, path=local_model(config.path, key, pinned=model is None, weights=False))
    if config.tokenizer is not None:
        tokenizer = local_model(config.tokenizer, "model.tokenizer", pinned=True, weights=False)
        config = dataclasses.replace(config, tokenizer=tokenizer)
    if not (Path(config.path) / "config.json").is_file():
        raise ConfigError(
            f"{'model.path' if model is None else '--model'}: {config.path} has no config.json (working directory: "
            f"{Path.cwd()}); name the folder of the model that the run began with by --model"
        )
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainedWeights:
    """The weights that a run has trained, as they were found on disk."""

    step: int
    folder: Path
    weights: Mapping[str, Tensor]
    adapter: Mapping[str, Tensor]  # of LoRA, under peft's names; the weights are then the base model's


def _base(saved: SavedRun, model: Path | str | None) -> ModelConfig:
    """The model that the run began with. Its card names the licence, if it can be had; the export is done without."""
    try:
        return _located(saved, model)
    except RametError:
        return saved.model


def _find(
    run: Path, step: int | None, model: Path | str | None, trust_remote_code: bool, *, only_adapter: bool = False
) -> tuple[SavedRun, ModelConfig, _TrainedWeights]:
    saved = read_run(run)
    if saved.job not in ("train", "sft"):
        raise ConfigError(f"{run} is a `ramet {saved.job}` run, and only `ramet train` and `ramet sft` train a model")
    if saved.job == "sft" and step is None and not only_adapter and (done := _finished_sft(run)) is not None:
        config = dataclasses.replace(saved.model, path=str(done.folder), tokenizer=None, chat_template=None)
        return saved, dataclasses.replace(config, trust_remote_code=trust_remote_code), done
    config = dataclasses.replace(_located(saved, model), trust_remote_code=trust_remote_code)
    if saved.job == "sft":
        return saved, config, _sft_source(run, step)
    checkpoint = find_checkpoint(run / "checkpoints", step)
    weights = _read(checkpoint)
    adapter = dict(adapters(weights))
    return (
        saved,
        config,
        _TrainedWeights(step=checkpoint.step, folder=checkpoint.folder, weights=weights, adapter=adapter),
    )


def _finished_sft(run: Path) -> _TrainedWeights | None:
    """The model of a finished `ramet sft`, merged with what LoRA has trained; None if it is not finished."""
    summary = read_summary(run)
    if summary is None:
        return None
    folder = next((path for path in (Path(summary.model), run / "model") if path.is_dir()), None)
    if folder is None:
        return None
    step = summary.best_step or summary.steps
    return _TrainedWeights(step=step, folder=folder, weights=dict(WeightFiles(folder)), adapter={})


def _sft_source(run: Path, step: int | None) -> _TrainedWeights:
    """The adapter of a finished `ramet sft`, or what one of its checkpoints has."""
    summary, folder = read_summary(run), run / ADAPTER
    if step is None and summary is not None and folder.is_dir():
        adapter = load_file(folder / ADAPTER_WEIGHTS)
        return _TrainedWeights(step=summary.best_step or summary.steps, folder=folder, weights={}, adapter=adapter)
    checkpoint = chosen_checkpoint(run / "checkpoints", step)
    weights = weights_of(checkpoint)
    adapter = weights if SftLayout.read(checkpoint.parent).lora_rank else {}
    return _TrainedWeights(step=step_of(checkpoint), folder=checkpoint, weights=weights, adapter=adapter)


def _selection(run: Path, checkpoint: _TrainedWeights, valid: tuple[str, ...]) -> Selection | None:
    """How a validation chose this checkpoint; None: it is not the best of those that are there."""
    score = read_score(checkpoint.folder)
    if score is None:
        return None
    folders = sorted(path for path in (run / "checkpoints").glob("step_*") if NAME.fullmatch(path.name))
    best = best_of([(folder, read_score(folder)) for folder in folders], score.metric)
    if best is None or best[0] != checkpoint.folder:
        return None
    return Selection(step=checkpoint.step, metric=score.metric, value=score.value, data=tuple(map(public_name, valid)))


def _read(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return all weights, whatever number of ranks wrote them; under LoRA the adapter's."""
    try:
        return saved_weights(checkpoint.folder)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error


def _merged(adapter: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    return dict(AdapterMerger(Path(config.path))(adapter.items()))


def _export(
    trained: PreTrainedModel,
    config: ModelConfig,
    folder: Path,
    out: Path,
    sequences: list[SampleSequence],
    temperature: float,
) -> Comparison:
    """Write and compare the model in `folder`, which becomes `out`. Rounds `trained` to the wanted type."""
    before = logprobs(trained, sequences, temperature)
    for parameter in trained.parameters():  # `to` would round the frequencies of positions too
        parameter.data = parameter.data.to(DTYPES[config.dtype])
    written = before if config.dtype is Dtype.FLOAT32 else logprobs(trained, sequences, temperature)
    trained.save_pretrained(folder)
    _write_tokenizer(config, folder, out)
    again = load_model(_in(folder, _comparable(config)))
    _require_same(different_weights(trained, again), out)
    after = logprobs(again, sequences, temperature)
    return _passed(compare(before, written, after, sequences, config.dtype), config.dtype, out)


def _write_tokenizer(config: ModelConfig, folder: Path, out: Path) -> None:
    """Write the tokenizer in `folder`, which becomes `out`, and compare it."""
    tokenizer = load_tokenizer(config)
    tokenizer.save_pretrained(folder)
    if not same_tokens(tokenizer, load_tokenizer(_in(folder, config))):
        raise InfraError(f"{out}: not written: read back, the tokenizer makes other tokens")


def _in(folder: Path, config: ModelConfig) -> ModelConfig:
    return dataclasses.replace(config, path=str(folder), tokenizer=None, chat_template=None)


def check_adapter(adapter: Mapping[str, Tensor], where: Path) -> list[str]:
    """Return why there is no adapter to write."""
    if not adapter:
        runs = "runs without policy.lora_rank or sft.lora_rank"
        return [f"--adapter: {where} has complete weights, as {runs} have; leave --adapter out"]
    return check_lora()


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
            f"from the same weights'; at most {comparison.threshold:g} is allowed in {dtype}"
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
