"""The contents of a checkpoint, and how it is written, verified and found again."""
