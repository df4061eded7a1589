"""The engine `vllm`: vLLM inside this process, owned by one thread.

From the top: `engine` checks what can be checked without vLLM and puts it together, `environment` sets what must stand
before vLLM is imported, `launch` starts it, `batcher` turns requests into vLLM's and its outputs into events, and
`probe` reads log-probabilities and entropies off the logits. Only `launch`, `batcher` and `probe` import vLLM.
"""

from ramet.engines.vllm.engine import VllmEngine, check_vllm

__all__ = ["VllmEngine", "check_vllm"]
