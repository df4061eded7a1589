"""Benchmarks for Ramet."""

ramet_contract = "1"
