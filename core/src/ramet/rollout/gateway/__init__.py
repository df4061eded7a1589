"""The gateway: agents that run their own loop call the policy over HTTP, and every token is recorded as it was."""
