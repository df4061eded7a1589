"""Supervised fine-tuning on written traces, with the ids and the masks of rollouts."""
