"""The built-in engine: a model with its cache, put together behind the engine protocol."""

from __future__ import annotations

from contextlib import nullcontext

from transformers import PreTrainedModel

from ramet.engines.config import TorchEngineConfig
from ramet.engines.counters import Counters
from ramet.engines.protocol import Capability, EngineInfo
from ramet.engines.threaded import ThreadedEngine
from ramet.engines.torch.batcher import TorchBatcher
from ramet.engines.torch.cache import round_up
from ramet.engines.torch.determinism_check import check_rows_agree
from ramet.engines.torch.forward import Forward
from ramet.engines.torch.model_runner import ModelRunner
from ramet.models.encoder import Encoder


class TorchEngine(ThreadedEngine):
    """Continuous batching over a static KV cache (`ramet.engines.protocol.Engine`). Owns `model`.

    With `deterministic`, a request's numbers depend on its own history alone: its prompt, seed, and the turns of its
    cache key and its parent's. For that a key keeps its slot until it is released, so `slots` must be at least the
    number of rollouts under way at once, and a parent may be released only after its forks have started.
    """

    def __init__(
        self,
        config: TorchEngineConfig,
        *,
        model: PreTrainedModel,
        encoder: Encoder,
        max_tokens: int,
        deterministic: bool = False,
    ) -> None:
        """Raises `ConfigError` for a model that this engine would compute wrongly."""
        model.train(False)
        model.requires_grad_(False)
        lanes = round_up(config.slots) if deterministic else config.slots
        forward = Forward(model, slots=lanes, max_tokens=config.max_tokens or max_tokens)
        if deterministic:
            check_rows_agree(forward, lanes)
        capabilities = {Capability.ENTROPY, Capability.SEEDS, Capability.WEIGHT_UPDATE}
        if deterministic:
            capabilities.add(Capability.DETERMINISTIC)
        info = EngineInfo(
            name="torch",
            capabilities=frozenset(capabilities),
            vocab_size=forward.vocab_size,
            max_tokens=forward.max_tokens,
        )
        counters = Counters()
        batcher = TorchBatcher(
            ModelRunner(forward, deterministic=deterministic),
            encoder,
            counters,
            slots=config.slots,
            max_tokens=forward.max_tokens,
            prefill_tokens=config.prefill_tokens,
        )
        super().__init__(info, counters, lambda: nullcontext(batcher))
