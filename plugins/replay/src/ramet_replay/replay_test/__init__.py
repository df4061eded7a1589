"""`ramet test`: recorded rollouts as regression tests of an agent."""
