"""The worth of turns, in the file that `ramet credit` (the package ramet-replay) writes next to a run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)
CREDIT = "credit.jsonl"


def credit_folder(run: Path) -> Path:
    """Return the folder that measurements of a run are written to unless another one is named."""
    return run.with_name(f"{run.name}.credit")


def read_credit(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of `credit.jsonl`; none where there is no such file. A broken one is reported and left out."""
    try:
        return [json.loads(line) for line in (folder / CREDIT).read_bytes().splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        logger.warning("%s could not be read: %s", folder / CREDIT, error)
        return []
