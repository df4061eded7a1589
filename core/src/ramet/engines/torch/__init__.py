"""The built-in engine `torch`: continuous batching over a static KV cache, on one device.

From the top: `engine` is the callers' interface, `engine_thread` runs `batcher` in a thread, which decides the next
computation. `slots` knows whose tokens are in which cache slot. `model_runner` runs the computation, with `forward`,
`cache` and `sampler`.
"""

from ramet.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine"]
