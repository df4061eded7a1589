"""Placement of a run and the memory that it needs, from the configuration alone: what `--dry-run` prints."""
