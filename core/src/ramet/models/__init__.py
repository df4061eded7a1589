"""Models: loading, tokenizers and the one encoder that SFT and rollouts share."""
