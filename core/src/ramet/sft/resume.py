"""Which Trainer checkpoint a killed run goes on from: the newest one whose files are all there and load.

Trainer writes into the final folder and `trainer_state.json` last, so a kill leaves a folder that looks like a
checkpoint and is none; and a rank may be killed when the first one has written that file. A power loss can leave any
file short.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from ramet.sft.layouts import SftLayout

logger = logging.getLogger(__name__)
STATE = "trainer_state.json"
_FOLDER = re.compile(r"checkpoint-(\d+)")


def newest_complete(folder: Path, layout: SftLayout | None = None) -> Path | None:
    """The complete checkpoint of the most steps, None if there is none. Incomplete ones are logged and passed over."""
    layout = layout or SftLayout()
    for step, checkpoint in sorted(_checkpoints(folder), reverse=True):
        problem = incomplete(checkpoint, step, layout)
        if problem is None:
            return checkpoint
        logger.warning("checkpoint %s is not complete and is passed over: %s", checkpoint, problem)
    return None


def step_of(checkpoint: Path | None) -> int:
    """Optimiser steps done at this checkpoint, 0 for none."""
    match = _FOLDER.fullmatch(checkpoint.name) if checkpoint is not None else None
    return int(match[1]) if match else 0


def incomplete(checkpoint: Path, step: int, layout: SftLayout) -> str | None:
    """Why this checkpoint cannot be resumed, None if it can."""
    try:
        state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        found = state.get("global_step")
    except (OSError, ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    if found != step:
        return f"{STATE} is of step {found}"
    return layout.problem(checkpoint)


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.glob("checkpoint-*"):
        match = _FOLDER.fullmatch(path.name)
        if match and path.is_dir():
            yield int(match[1]), path
