"""The built-in engine `torch`: continuous batching over a static KV cache, on one device.

From the top: `engine` puts it together, `batcher` decides what is computed next, `slots` knows whose tokens stand in
which cache slot, `compute` runs it, and `forward`, `cache` and `sampler` do the work.
"""

from ramet.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine"]
