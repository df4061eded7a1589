"""The engine protocol: token ids in, token ids out, with exact log-probabilities and entropies.

All log-probabilities and entropies are those at the sampling temperature (logits / temperature, then log-softmax; at
temperature 0 sampling is greedy and both are those at temperature 1). Text appears only in stop strings.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


class Capability(StrEnum):
    """Optional capabilities of an engine. `needs` are checked against these before anything starts."""

    ENTROPY = "entropy"  # exact entropies
    SEEDS = "seeds"  # a request's seed decides its tokens
    DETERMINISTIC = "deterministic"  # bit-identical whatever other requests are in the batch
    WEIGHT_UPDATE = "weight_update"
    TOP_LOGPROBS = "top_logprobs"  # log-probabilities of the most likely tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # of the most likely token's probability; less likely tokens are not chosen
    repetition_penalty: float = 1.0  # of tokens of the prompt and the response so far (Keskar et al. 2019); 1: off
    max_tokens: int
    stop: tuple[str, ...] = ()  # ends the request; the tokens up to and with the stop string are returned
    stop_token_ids: tuple[int, ...] = ()  # ends the request; the token is returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation. `cache_key` names the cache of a rollout: a later request with the same key continues it, and
    `fork_of` names the key whose prefix a fork shares. Keys are hints for speed, never for correctness.
    """

    id: str
    token_ids: array[int]
    sampling: Sampling
    seed: int
    cache_key: str = ""
    fork_of: str = ""
    first_tokens: int = 20  # k: `on_first` is called once, when so many tokens are sampled or the request ended
    top_logprobs: int = 0  # how many of the most likely tokens' log-probabilities are wanted at the first k tokens


class FinishReason(StrEnum):
    STOP = "stop"  # a stop string
    END = "end"  # a stop token
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstReport:
    """The first k sampled tokens of a request."""

    request: str
    entropies: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The result of a request. The four arrays have one entry per sampled token; engines without
    `Capability.WEIGHT_UPDATE`, which are not trained with, may leave `logprobs` empty.

    `top_logprobs`: for each of the first k tokens, the log-probabilities of the most likely tokens, in any order, and
    of the sampled one if it is not among them. Empty unless the request asks for them.
    """

    token_ids: array[int]  # int32
    logprobs: array[float]  # float32
    entropies: array[float]  # float32; empty without `Capability.ENTROPY`
    finish: FinishReason
    stop: str | None  # the stop string, if one ended it
    policy_versions: array[int]  # int32; of the weights that sampled each token; they never decrease
    prompt_tokens: int
    cached_tokens: int  # prompt tokens whose cache was reused or copied instead of computed
    top_logprobs: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    name: str
    capabilities: frozenset[Capability]
    vocab_size: int  # rows of the output head
    max_tokens: int  # prompt and response together


class Engine(Protocol):
    """Engine, owned by one asyncio loop; `generate` may be called concurrently. Everything may raise `InfraError`."""

    info: EngineInfo
    in_flight: bool  # weight updates do not wait for running requests (`train.staleness`)

    @property
    def policy_version(self) -> int: ...

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        """Raises `InfraError` if the engine failed, `ValueError` for a request that cannot be served."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request now; its `generate` returns its tokens so far, with `FinishReason.ABORT`. Unknown ids pass."""
        ...

    def release(self, cache_keys: Sequence[str]) -> None:
        """Release the caches of these rollouts, which are over. Unknown keys pass."""
        ...

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy new weights in place, drop every cache of older ones, and serve as `version` from now on.

        Waits for running requests, and later ones wait for it. In an engine with `in_flight` no request waits: the
        weights change between two tokens of the running requests. Their caches are computed again from prompt and
        tokens so far. They continue with the same seed, stops, limits and first report. Updates keep their order. Names
        are from the Hugging Face model's `state_dict`. Raises `ValueError`, and changes nothing, if names or shapes do
        not fit the model.
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """Counters since the last call: `engine/sampled_tokens`, `engine/prompt_tokens`, `engine/cached_tokens`, …"""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class MayFail(Protocol):
    """An engine that can fail for good while its process lives on, which then serves nothing any more."""

    @property
    def failure(self) -> str | None:
        """Why nothing is served any more; None: it serves."""
        ...


@runtime_checkable
class Sleeper(Protocol):
    """An engine that can give back the memory of a device that it shares with the trainer (`cluster.colocate=true`).

    `sleep`, `wake_weights`, `update_weights`, `wake` is the order: weights are lost, so they are given again, the same
    or new ones, before there is a cache that could be in their way. A call while already asleep, or awake, does
    nothing.
    """

    async def sleep(self) -> None:
        """Compute nothing and use as little device memory as possible until `wake`.

        Weights and every cache are dropped. Running requests, and those that come, wait; weights may not be updated
        before `wake_weights` (`RuntimeError`). An update until `wake` waits for no request.
        """
        ...

    async def wake_weights(self) -> None:
        """Take back the memory of the weights; an update must follow."""
        ...

    async def wake(self) -> None:
        """Take back the rest and continue. Raises `RuntimeError` if the weights are still lost."""
        ...
