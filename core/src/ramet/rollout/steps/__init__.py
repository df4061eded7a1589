"""Turn protocols that ship with the core, and what every rollout step must return."""
