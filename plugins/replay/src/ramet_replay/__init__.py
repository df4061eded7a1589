"""Commands that run recorded rollouts again: `ramet credit` and `ramet test`."""

ramet_contract = "1"
