"""The RL loop: rollouts, rewards, advantages, updates, weight sync; one step after the other."""
