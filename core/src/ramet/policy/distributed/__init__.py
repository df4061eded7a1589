"""Ranks, FSDP2 sharding and Ulysses sequence parallelism."""
