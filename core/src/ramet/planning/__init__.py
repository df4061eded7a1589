"""Placement of a run and the memory that it needs, from the configuration only: printed by `--dry-run`."""
