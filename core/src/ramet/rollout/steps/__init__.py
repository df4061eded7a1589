"""Turn protocols that ship with the core."""
