"""Rollouts whose turns an agent asks for, and the agents that are built in."""
