"""The built-in engine `torch`: continuous batching over a static KV cache, on one device.

From the top: `engine` is the asyncio face, `worker` the thread that owns the model, `batcher` decides what is computed
next, `slots` knows whose tokens stand in which cache slot, and `forward`, `cache`, `sampler` and `stops` do the work.
"""

from ramet.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine"]
