"""Where a run would go and what memory it needs, from the configuration alone: what `--dry-run` prints."""
