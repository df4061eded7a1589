"""Errors of training itself."""

from __future__ import annotations

from ramet.errors import InfraError, RametError


class TrainingDiverged(RametError):
    """Loss or gradient was not finite several times in a row. The weights are from the last good optimiser step.

    `mid_step`: it was part of the training step that failed, so the weights belong to no complete step.
    """

    mid_step = False


class OutOfMemory(RametError):
    """A device's memory is too small for a forward or backward pass. Weights and optimiser are as before."""


class CheckpointError(RametError):
    """A checkpoint could not be written or read. Those written before are unchanged."""


class CheckpointNotWritten(CheckpointError, InfraError):
    """A disk is full, cannot be written to, or is gone: the run continues from an older one once that is fixed."""
