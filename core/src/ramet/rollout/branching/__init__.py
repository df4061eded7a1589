"""Decisions where rollouts fork: policies, events in order, and the state of the group."""
