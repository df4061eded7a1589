"""What a checkpoint holds beside the policy: where the run stands."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ramet.errors import ConfigError

FILE = "trainer.json"


@dataclass(slots=True, kw_only=True)
class TrainState:
    """`step` steps are done. Tasks, seeds and draws of the next step follow from it, the run seed and the data."""

    step: int = 0
    data_fingerprint: str = ""
    seconds: float = 0.0  # of training so far, over all attempts

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> TrainState:
        """Raises `ConfigError` if the file is not one of ours."""
        try:
            return cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{folder / FILE}: not the state of a run: {error}") from error
