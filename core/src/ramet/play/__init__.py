"""`ramet play`: single prompts with tools, through the rollout code that trains."""
