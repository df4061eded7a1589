"""Run directories: who owns them, what they record, and whether a run may continue."""
