"""The engine `vllm`. With one device, vLLM inside this process, owned by one thread:

`engine` checks what can be checked without vLLM and puts it together, `environment` sets what must stand before vLLM is
imported, `launch` starts it, `batcher` turns requests into vLLM's and its outputs into events, `probe` reads
log-probabilities and entropies off the logits, and `bed` lets it sleep.

With several devices (`tensor_parallel`), vLLM in processes of its own, on a loop in a thread: `asynchronous` is what
callers see, `bridge` the way to that loop, `service` what happens there, `turns` its order of requests and updates,
`numbers` fetches what `extension` measured in vLLM's workers, `transfer` sends weights to their `receive`, and `owner`
lets them end with this process.

Only `launch`, `batcher`, `probe`, `bed`, `service`, `extension`, `transfer` and `receive` import vLLM.
"""

from ramet.engines.vllm.asynchronous import VllmAsyncEngine
from ramet.engines.vllm.engine import CAPABILITIES, VllmEngine, check_vllm

__all__ = ["CAPABILITIES", "VllmAsyncEngine", "VllmEngine", "check_vllm"]
