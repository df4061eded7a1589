"""`ramet migrate`: a recipe of what another trainer was started with, and what became of each of its keys."""
