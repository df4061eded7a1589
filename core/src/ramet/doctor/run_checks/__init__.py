"""Checks of a run: each reads a `StoredRun` and yields findings."""
