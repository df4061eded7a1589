"""TensorBoard as a tracker (`pip install 'ramet[tensorboard]'`): event files in the run's folder `tensorboard`.

`tensorboard --logdir runs` shows all runs side by side, by their names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from ramet.types import TrackedRun

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)
FOLDER = "tensorboard"


class TensorboardTracker:
    """Every metric is a scalar under its own name."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = partial(SummaryWriter, str(run.folder / FOLDER))
        self._writer: SummaryWriter | None = None
        logger.info("tensorboard: tensorboard --logdir %s", run.folder)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._open()
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)
        self._writer.flush()

    def rewind(self, step: int) -> None:
        """A new event file, which says that later steps of earlier files do not count."""
        self.close()
        self._writer = self._open(purge_step=step + 1)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
