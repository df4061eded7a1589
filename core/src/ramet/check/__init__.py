"""`ramet check-logprobs`: do the engine and the trainer agree on what was sampled?"""
