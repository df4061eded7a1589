"""What a checkpoint holds beside the policy: where the run stands."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError

FILE = "trainer.json"


@dataclass(slots=True, kw_only=True)
class TrainState:
    """`step` steps are done. The next step's tasks follow from the sampler's state and the data, its seeds and draws
    from its number and the run's seed.
    """

    data_fingerprint: str  # of the tasks that the steps count through
    step: int = 0
    seconds: float = 0.0  # of training so far, over all attempts
    sampler: dict[str, Any] = field(default_factory=dict)  # after the draws of `step`; empty before the first

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, data_fingerprint: str) -> TrainState:
        """Raises `ConfigError` if the file is not one of ours, or counts through other data."""
        try:
            state = cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{folder / FILE}: not the state of a run: {error}") from error
        if state.data_fingerprint != data_fingerprint:
            raise ConfigError(
                f"{folder}: written with other training data (sha256 {state.data_fingerprint[:12]}, now "
                f"{data_fingerprint[:12]}); restore the data, or choose another run.name"
            )
        return state
