"""Errors of training itself."""

from __future__ import annotations

from ramet.errors import RametError


class TrainingDiverged(RametError):
    """Loss or gradient was not finite several times in a row. The weights are those of the last good step."""


class CheckpointError(RametError):
    """A checkpoint could not be written or read. Those written before are untouched."""
