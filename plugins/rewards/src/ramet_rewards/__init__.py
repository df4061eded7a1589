"""Rewards for Ramet: mathematics, question answering, format."""

ramet_contract = "1"
