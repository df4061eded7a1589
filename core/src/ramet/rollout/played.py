"""An engine that gives chosen tokens in answer to some requests, for rollouts that run again from their record."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ramet.engines.protocol import Completion, Engine, EngineInfo, FinishReason, FirstReport, Request
from ramet.engines.sequence import RunningSequence, StopStrings
from ramet.errors import InfraError

if TYPE_CHECKING:
    from torch import Tensor

    from ramet.models.encoder import Encoder

Script = Callable[[Request], Completion | None]
NO_ENGINE = "no engine was started: only recorded tokens can be given"


class PlayedEngine:
    """`Engine`: `script` answers what it can, and `engine` all other requests; None: there are none."""

    def __init__(self, script: Script, info: EngineInfo, engine: Engine | None) -> None:
        self.info = info
        self.in_flight = False
        self._script, self._engine = script, engine

    @property
    def policy_version(self) -> int:
        return 0 if self._engine is None else self._engine.policy_version

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        if (completion := self._script(request)) is not None:
            return replace(completion, policy_versions=array("i", [self.policy_version]) * len(completion.token_ids))
        if self._engine is None:
            raise InfraError(NO_ENGINE)
        return await self._engine.generate(request, on_first)

    def abort(self, request_id: str) -> None:
        if self._engine is not None:
            self._engine.abort(request_id)

    def release(self, cache_keys: Sequence[str]) -> None:
        if self._engine is not None:
            self._engine.release(cache_keys)

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        if self._engine is None:
            raise InfraError(NO_ENGINE)
        await self._engine.update_weights(weights, version)

    def metrics(self) -> Mapping[str, float]:
        return {} if self._engine is None else self._engine.metrics()

    async def close(self) -> None:
        """Do nothing: `engine` is the caller's."""


def given_completion(request: Request, ids: Sequence[int], encoder: Encoder) -> Completion:
    """The completion of an engine that sampled `ids`, up to the request's first stop; without log-probabilities."""
    strings = request.sampling.stop
    sequence = RunningSequence(request, StopStrings(strings, encoder) if strings else None, request.cache_key, 0)
    finish, stop = FinishReason.LENGTH, None
    for token in ids:
        if (ended := sequence.append(token)) is not None:
            finish, stop = ended
            break
    return sequence.completion(finish, stop, 0)
