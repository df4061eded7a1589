"""One engine call of a round: all requests together, and nothing continues before the slowest has ended."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ramet import ConfigError, Fault, PluginError
from ramet_release.entropy import TOP_LOGPROBS
from ramet_release.internals import (
    Completion,
    Engine,
    FinishReason,
    Request,
    ResolvedPlan,
    RolloutKey,
    Sampling,
    Versions,
    Watchdog,
    completion_problem,
    named,
    request_seed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A row's context, and how far to continue it. `ends_at`: its deadline, in the event loop's time."""

    key: RolloutKey
    turn: int
    token_ids: array[int]
    max_tokens: int
    stop: tuple[str, ...]
    ends_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEngine:
    """The engine as rounds use it. Requests share prefixes only by content, as the release relies on."""

    engine: Engine
    plan: ResolvedPlan
    seed: int
    first_tokens: int  # k
    eos_ids: tuple[int, ...]
    versions: Versions | None
    watchdog: Watchdog
    places: asyncio.Semaphore  # `rollout.max_concurrent` requests at once

    async def sample(self, asks: Sequence[Ask]) -> list[Completion | Fault]:
        """Sample in the order of `asks`; a failed request is a fault. Raises `PluginError` and `ConfigError`."""
        with self.watchdog.wait(f"round of {len(asks)} generations"):
            async with asyncio.TaskGroup() as calls:
                running = [calls.create_task(self._one(ask)) for ask in asks]
        return [task.result() for task in running]

    async def _one(self, ask: Ask) -> Completion | Fault:
        request = self._request(ask)
        try:
            async with asyncio.timeout_at(ask.ends_at), self.places:
                completion = await self.engine.generate(request)
        except TimeoutError:
            self.engine.abort(request.id)
            return Fault(where="deadline", message=f"not finished within its deadline (round {ask.turn})")
        except asyncio.CancelledError:
            self.engine.abort(request.id)
            raise
        except ConfigError as error:
            raise named(error, f"engine {self.engine.info.name!r}", "engine") from error
        except PluginError:
            raise
        except Exception as error:  # whatever an engine raises, one request failed and the others continue
            return Fault(where="engine", message=f"{type(error).__name__}: {error}")
        if completion.finish is FinishReason.ABORT:
            return Fault(where="engine", message="the request was aborted")
        problem = completion_problem(completion, self.versions)
        if problem is not None:
            message = f"request {request.id!r} was answered with what cannot be used: {problem}"
            return Fault(where="engine", message=message)
        return completion

    def _request(self, ask: Ask) -> Request:
        """The released limit is the round's, which a row may not have left; the engine's own ends it then."""
        plan, room = self.plan, self.engine.info.max_tokens - len(ask.token_ids)
        return Request(
            id=f"{ask.key}/{ask.turn}",
            token_ids=array("i", ask.token_ids),
            sampling=Sampling(
                temperature=plan.temperature,
                top_p=plan.top_p,
                top_k=plan.top_k,
                max_tokens=max(1, min(ask.max_tokens, room)),
                stop=ask.stop,
                stop_token_ids=self.eos_ids,
            ),
            seed=request_seed(self.seed, ask.key, ask.turn),
            first_tokens=self.first_tokens,
            top_logprobs=TOP_LOGPROBS,
        )
