"""A Python interpreter as a tool for Ramet."""

ramet_contract = "1"
