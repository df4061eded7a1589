"""The output of a finished training: the model folder, the curve and a summary. Each appears complete or not at all."""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.errors import ConfigError, InfraError
from ramet.io.atomic import share_rights, sync, sync_tree, temporary_folder, write_file
from ramet.io.os_errors import naming
from ramet.runs.own_files import SFT_SUMMARY

if TYPE_CHECKING:  # `ramet checkpoints` reads a summary, and needs neither
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADAPTER = "adapter"  # of LoRA, in the run's directory: the folder that peft loads
MARKER = "ramet_sft.json"  # of a model folder that `ramet sft` has written: only such a folder may be replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The content of `sft.json`, written last."""

    model: str  # folder
    rows: int
    rows_too_long: int  # left out
    rows_cut: int = 0  # at sft.max_tokens, and trained on
    rows_held_out: int = 0
    rows_malformed: int = 0  # left out or, with sft.malformed=keep, trained on
    rows_with_unread_results: int  # trained on although they seem to contain a tool's result, unmasked
    examples: int  # one per exchange of a row
    trained_tokens: int  # in one pass over the examples
    steps: int
    planned_steps: int = 0  # more than `steps` if it ended early; 0: not recorded
    best_step: int | None = None  # whose weights these are, of a training with held-out rows
    valid_loss: float | None = None  # their held-out loss
    resumed_step: int  # where the last process began
    seconds: float  # of training in the last process
    final_loss: float
    data_fingerprint: str
    seed: int


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a Hugging Face folder, replacing an earlier one only when the new one is complete.

    `weights` are written in the model's dtype instead of its own weights, of which it may have only a part. Raises
    `InfraError` if another file or folder is in its place, and `OSError` if it cannot be written.
    """

    def fill(temporary: Path) -> None:
        model.save_pretrained(temporary, state_dict=None if weights is None else _state(model, weights))
        tokenizer.save_pretrained(temporary)

    _replace(folder, fill)


def write_adapter(adapter: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerBase, folder: Path, path: str) -> None:
    """Write an adapter as peft does. `path`: the model that it belongs to. As `save_model`."""
    from ramet.policy.lora import save_adapter

    def fill(temporary: Path) -> None:
        save_adapter(temporary, adapter, path)
        tokenizer.save_pretrained(temporary)

    _replace(folder, fill)


def _replace(folder: Path, fill: Callable[[Path], None]) -> None:
    """Have `fill` write a new folder, and let it replace an earlier one that `ramet sft` wrote."""
    for stale in folder.parent.glob(f".{glob.escape(folder.name)}.*.tmp"):
        if _is_ours(stale):  # left by a process that was killed
            _remove(stale)
    temporary = _new_folder(folder)
    try:
        with naming(folder):
            fill(temporary)
            share_rights(temporary)
            sync_tree(temporary)
    except OSError:
        _remove(temporary)  # half a model is of no use, and may be what fills the disk
        raise
    if not may_replace(folder):
        raise InfraError(f"{folder}: not written by `ramet sft`, and not replaced; the trained model is in {temporary}")
    earlier = _new_folder(folder) if folder.exists() else None
    if earlier is not None:
        folder.replace(earlier / folder.name)
    temporary.replace(folder)
    sync(folder.parent)
    if earlier is not None:
        _remove(earlier)


def may_replace(folder: Path) -> bool:
    """Whether a trained model may be written there: nothing exists, or nothing but an earlier one."""
    if not os.path.lexists(folder):
        return True
    return _is_ours(folder) or (folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()))


def _is_ours(folder: Path) -> bool:
    return not folder.is_symlink() and (folder / MARKER).is_file()


def _new_folder(folder: Path) -> Path:
    """An empty folder with the mark of `ramet sft`."""
    marked = temporary_folder(folder)
    try:
        with naming(folder):
            (marked / MARKER).write_text("{}\n", encoding="ascii")
    except OSError:
        shutil.rmtree(marked, ignore_errors=True)  # without the mark it would never be deleted
        raise
    return marked


def _remove(folder: Path) -> None:
    """Delete a marked folder, the mark last: after a kill the next process knows the rest and deletes it."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARKER:
            path.unlink()
    shutil.rmtree(folder)


def _state(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gathered weights no longer show by their memory which of them are tied, that is, stored once."""
    tied = model.all_tied_weights_keys
    return {name: weight.to(model.dtype) for name, weight in weights.items() if name not in tied}


def write_summary(run: Path, summary: Summary) -> None:
    write_file(run / SFT_SUMMARY, json.dumps(asdict(summary), indent=2) + "\n")


def finished_training(run: Path) -> Summary | None:
    """The summary of a finished training whose model is where it was written, or None.

    Raises `ConfigError` for a file that is not a summary.
    """
    try:
        done = read_summary(run)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{run / SFT_SUMMARY}: not a summary of a training: {error}") from error
    return done if done is not None and Path(done.model).is_dir() else None


def read_summary(run: Path) -> Summary | None:
    """The summary of a finished training, or None."""
    try:
        return Summary(**json.loads((run / SFT_SUMMARY).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
