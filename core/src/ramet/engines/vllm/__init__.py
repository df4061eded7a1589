"""The engine `vllm`, driving vLLM in separate processes.

In this process: `engine` is what callers see, `environment` checks and sets what must be right before vLLM is imported.
`launch` starts it. `service` serves requests and weight updates, in an event loop in a thread, in the order that
`update_barrier` keeps. In vLLM's processes: `executors` lets only this process end them; `worker_extension` has the
workers' `recorder` measure log-probabilities and entropies, which `logprob_fetcher` asks for. `weight_transfer` has
both sides of new weights.

Only `launch`, `executors`, `service`, `worker_extension` and `weight_transfer` import vLLM.
"""

from ramet.engines.vllm.engine import VllmEngine, capabilities
from ramet.engines.vllm.environment import check_vllm

__all__ = ["VllmEngine", "capabilities", "check_vllm"]
