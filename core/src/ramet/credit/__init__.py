"""What each call of a recorded rollout was worth, measured by continuing the rollout before and after it."""
