"""Write a Hugging Face folder, load it again, and compare it with what it was made from.

The folder is written beside its place and moved there after the comparison: what is there has been checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from ramet.config.schema import Attention, Dtype, ModelConfig, RunConfig
from ramet.errors import ConfigError, InfraError
from ramet.export.check import Comparison, compare, different_weights, logprobs
from ramet.export.model import build_model
from ramet.export.sequences import Sequence, random_sequences, recorded_sequences
from ramet.export.verl import model_folder, read_shards
from ramet.models.loading import DTYPES, load_model, load_tokenizer
from ramet.models.torch_setup import set_up_torch
from ramet.policy.checkpoint import NAME, Checkpoint, verify
from ramet.policy.state import WEIGHTS
from ramet.tracking.saved import SavedRun, read_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    folder: Path
    source: Path  # the checkpoint, or the folder of the shards
    dtype: Dtype
    n_parameters: int
    recorded: bool  # compared on rollouts of the run; False: on random tokens
    comparison: Comparison


def export_run(
    run: Path, out: Path, *, dtype: Dtype | None = None, step: int | None = None, model: Path | None = None
) -> Exported:
    """The newest whole checkpoint, or the one behind `step`. `dtype` None: the run's; `model`: where its base lies now.

    Raises `ConfigError`, and `InfraError` if the folder cannot be written or is not the trained policy.
    """
    _begin(out)
    saved = read_run(run)
    if saved.job != "train":
        raise ConfigError(f"{run} is a `ramet {saved.job}` run, and only `ramet train` runs have a policy to export")
    config = _located(saved, model)
    checkpoint = find_checkpoint(run / "checkpoints", step)
    trained = build_model(config, _read_weights(checkpoint), str(checkpoint.folder))
    recorded = recorded_sequences(run, checkpoint.step)
    sequences = recorded or random_sequences(trained.config.vocab_size)
    config = dataclasses.replace(config, dtype=dtype or config.dtype)
    found = _export(trained, config, out, sequences, saved.temperature)
    return _exported(trained, out, checkpoint.folder, config.dtype, bool(recorded), found)


def export_verl(shards: Path, out: Path, *, dtype: Dtype = Dtype.BFLOAT16, model: Path | None = None) -> Exported:
    """The model of a verl checkpoint. `model`: a folder with configuration and tokenizer, if not among the shards.

    Raises as `export_run`.
    """
    _begin(out)
    if model is not None and not (model / "config.json").is_file():
        raise ConfigError(f"--model: {model} has no config.json; give a Hugging Face model folder")
    config = ModelConfig(path=str(model or model_folder(shards)), dtype=dtype)
    trained = build_model(config, read_shards(shards), str(shards))
    sequences = random_sequences(trained.config.vocab_size)
    found = _export(trained, config, out, sequences, temperature=1.0)
    return _exported(trained, out, shards, dtype, False, found)


def find_checkpoint(root: Path, step: int | None) -> Checkpoint:
    """The newest whole one, or the one behind `step`. Only reads: the run may be under way. Raises `ConfigError`."""
    steps = sorted(int(found[1]) for path in root.glob("step_*") if (found := NAME.fullmatch(path.name)))
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


def _read_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    try:
        return load_file(checkpoint.folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{checkpoint.folder / WEIGHTS}: cannot be read: {error}") from error


def _export(
    trained: PreTrainedModel, config: ModelConfig, out: Path, sequences: list[Sequence], temperature: float
) -> Comparison:
    """Rounds `trained` to the wanted type on the way."""
    tokenizer = load_tokenizer(config)
    before = logprobs(trained, sequences, temperature)
    with _temporary(out) as folder:
        trained.to(DTYPES[config.dtype])  # type: ignore[arg-type]
        trained.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        attention = Attention.EAGER if config.attention is Attention.EAGER else Attention.SDPA
        again = load_model(
            dataclasses.replace(config, path=str(folder), tokenizer=None, chat_template=None, attention=attention)
        )
        if different := different_weights(trained, again):
            raise InfraError(f"{out}: not written: read back, {len(different)} weights differ, such as {different[0]}")
        found = compare(before, logprobs(again, sequences, temperature), sequences, config.dtype)
        if not found.passed:
            raise InfraError(
                f"{out}: not written: log-probabilities differ by up to {found.largest:.3g} from the trained policy's; "
                f"at most {found.threshold:g} is allowed in {config.dtype}"
            )
    return found


@contextlib.contextmanager
def _temporary(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place at the end, or goes."""
    folder = out.parent / f".{out.name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True)
        yield folder
        folder.replace(out)
    except (OSError, SafetensorError) as error:
        raise InfraError(f"{out}: could not be written: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _begin(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not an empty folder; nothing is overwritten, so name a new one")
    set_up_torch(RunConfig())


def _exported(
    model: PreTrainedModel, out: Path, source: Path, dtype: Dtype, recorded: bool, comparison: Comparison
) -> Exported:
    return Exported(
        folder=out,
        source=source,
        dtype=dtype,
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
        recorded=recorded,
        comparison=comparison,
    )
