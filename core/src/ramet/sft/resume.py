"""Which Trainer checkpoint a killed run goes on from: the newest one whose files are all there and load.

Trainer writes into the final folder and `trainer_state.json` last, so a kill leaves a folder that looks like a
checkpoint and is none. A power loss can leave any of its files short.
"""

from __future__ import annotations

import json
import logging
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

logger = logging.getLogger(__name__)
STATE = "trainer_state.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ARCHIVES = ("optimizer.pt", "scheduler.pt", "rng_state.pth")  # what torch.save wrote: zip files with checksums
_FOLDER = re.compile(r"checkpoint-(\d+)")


def newest_complete(folder: Path) -> Path | None:
    """The complete checkpoint of the most steps, None if there is none. Incomplete ones are logged and passed over."""
    for step, checkpoint in sorted(_checkpoints(folder), reverse=True):
        problem = incomplete(checkpoint, step)
        if problem is None:
            return checkpoint
        logger.warning("checkpoint %s is not complete and is passed over: %s", checkpoint, problem)
    return None


def step_of(checkpoint: Path | None) -> int:
    """Optimiser steps done at this checkpoint, 0 for none."""
    match = _FOLDER.fullmatch(checkpoint.name) if checkpoint is not None else None
    return int(match[1]) if match else 0


def incomplete(checkpoint: Path, step: int) -> str | None:
    """Why this checkpoint cannot be resumed, None if it can."""
    try:
        state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        if state.get("global_step") != step:
            return f"{STATE} is of step {state.get('global_step')}"
        for name in ARCHIVES:
            with zipfile.ZipFile(checkpoint / name) as archive:
                bad = archive.testzip()
            if bad is not None:
                return f"{name}: bad checksum of {bad}"
        for weights in _weights(checkpoint):
            with safe_open(weights, framework="pt") as tensors:
                tensors.keys()
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile, SafetensorError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.glob("checkpoint-*"):
        match = _FOLDER.fullmatch(path.name)
        if match and path.is_dir():
            yield int(match[1]), path


def _weights(checkpoint: Path) -> list[Path]:
    if not (checkpoint / INDEX).exists():
        return [checkpoint / WEIGHTS]
    index = json.loads((checkpoint / INDEX).read_text(encoding="utf-8"))
    return [checkpoint / name for name in sorted(set(index["weight_map"].values()))]
