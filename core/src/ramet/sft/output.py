"""What a finished training leaves: the model folder, the curve and a summary. Each appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

SUMMARY = "sft.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The content of `sft.json`, written last."""

    model: str  # folder
    rows: int
    rows_too_long: int  # left out
    rows_with_unread_results: int  # trained on although a tool's result seems to stand in them unmasked
    examples: int  # one per exchange of a row
    trained_tokens: int  # in one pass over the examples
    steps: int
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

    `weights` are written in the model's dtype instead of its own, of which it may hold a part.
    """
    temporary, earlier = (folder.with_name(f".{folder.name}.{suffix}") for suffix in ("tmp", "old"))
    for path in (temporary, earlier):
        shutil.rmtree(path, ignore_errors=True)
    temporary.mkdir(parents=True)
    model.save_pretrained(temporary, state_dict=None if weights is None else _state(model, weights))
    tokenizer.save_pretrained(temporary)
    if folder.exists():
        folder.replace(earlier)
    temporary.replace(folder)
    shutil.rmtree(earlier, ignore_errors=True)


def _state(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gathered weights no longer tell by their memory which of them are tied, that is, stored once."""
    tied = model.all_tied_weights_keys
    return {name: weight.to(model.dtype) for name, weight in weights.items() if name not in tied}


def write_summary(run: Path, summary: Summary) -> None:
    temporary = run / f".{SUMMARY}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(summary), indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(run / SUMMARY)


def read_summary(run: Path) -> Summary | None:
    """The summary of a finished training, None if there is none."""
    try:
        return Summary(**json.loads((run / SUMMARY).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
