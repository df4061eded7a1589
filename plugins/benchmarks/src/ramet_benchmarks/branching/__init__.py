"""A leaderboard of branch policies: the same training from the same checkpoints, each with another policy."""
