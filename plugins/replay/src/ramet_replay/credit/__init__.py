"""Measurement of what each call of a recorded rollout was worth: the rollout is continued before and after it."""
