"""Does this machine give a row the same bits wherever it stands in a batch?

Matrix libraries compute the last rows of a product by other kernels when their number is not a multiple of the block
size, and those may round differently. Deterministic engines pad to whole blocks, and ask before they promise anything.
"""

from __future__ import annotations

import torch

from ramet.engines.torch.forward import Forward
from ramet.errors import ConfigError

STEPS = 4


@torch.inference_mode()
def check_rows_agree(forward: Forward, lanes: int) -> None:
    """Decode the same tokens in every lane. Raises `ConfigError` if their logits are not the same bits."""
    slots = torch.arange(lanes, device=forward.device)
    for step in range(STEPS):
        tokens = torch.full_like(slots, step * 7 % forward.vocab_size)
        positions = torch.full_like(slots, step)
        logits = forward.decode(tokens, positions, slots, slice(0, lanes), forward.cache.length)
        if not torch.equal(logits, logits[:1].expand_as(logits)):
            raise ConfigError(
                f"run.deterministic: on this machine a row's numbers depend on its place in a batch of {lanes}; try "
                "another engine.params.slots or run.threads=1"
            )
    forward.cache.zero()
