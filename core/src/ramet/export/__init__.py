"""`ramet export`: a Hugging Face folder from a run's checkpoint, or from the shards of a verl checkpoint."""
