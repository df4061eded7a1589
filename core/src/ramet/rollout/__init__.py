"""Rollouts: the tree, the scheduler, the tool runtime, scoring and the record on disk."""
