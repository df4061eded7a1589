"""Requests and updates over vLLM's AsyncLLM. Lives on one loop; nothing here may be called from another.

Stops are looked for here, by the code of the other engines, in the stream of tokens: what vLLM sampled beyond one is
dropped. Numbers come from vLLM's first worker (`extension`), weights go to all of them (`transfer`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from array import array
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

from torch import Tensor
from vllm import RequestOutput, SamplingParams
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from ramet.engines.counters import Counters
from ramet.engines.protocol import Completion, FinishReason, FirstReport, Request
from ramet.engines.sequence import RunningSequence, StopStrings
from ramet.engines.vllm.launch import end_processes
from ramet.engines.vllm.logprob_fetcher import LogprobFetcher, SampledNumbers
from ramet.engines.vllm.update_barrier import UpdateBarrier
from ramet.engines.vllm.weight_transfer import chunks, finish_update, receive_chunk
from ramet.engines.vllm.worker_extension import NAME_KEY
from ramet.errors import InfraError
from ramet.models.encoder import Encoder

T = TypeVar("T")
Ended = tuple[FinishReason, str | None]
Report = Callable[[FirstReport], None]
logger = logging.getLogger(__name__)


class WeightState(Enum):
    """State of an engine's weights after a sleep, as callers see it; on a CPU they are in truth always there."""

    HERE = auto()
    DROPPED = auto()
    EMPTY = auto()  # their memory is back


@dataclass(slots=True, eq=False)
class RunningRequest:
    """`name` is vLLM's name for it: the worker may still know an id that comes back."""

    sequence: RunningSequence
    name: str
    task: asyncio.Task[Any] | None
    aborted: bool = False


class VllmService:
    """Serves until something breaks or it is ended; then everything raises `InfraError`."""

    def __init__(
        self,
        llm: AsyncLLM,
        *,
        encoder: Encoder,
        counters: Counters,
        timeout_s: float,
        can_sleep: bool,
        seeds: bool = False,
    ) -> None:
        """`timeout_s` bounds each call to vLLM's workers. `seeds`: requests are drawn by their own."""
        self.version = 0  # of the weights
        self._llm = llm
        self._encoder = encoder
        self._counters = counters
        self._timeout_s = timeout_s
        self._can_sleep = can_sleep
        self._seeds = seeds
        self._barrier = UpdateBarrier()
        self._update = AsyncExitStack()  # what the update that is running has entered
        self._exclusive = asyncio.Lock()  # for what pauses vLLM, changes it, and resumes it
        self._fetcher = LogprobFetcher(self._fetch)
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        self._running: dict[str, RunningRequest] = {}
        self._count = 0
        self._steps = 0
        self._asleep = False
        self._weights = WeightState.HERE
        self._has_warned = False  # that sleep frees nothing
        self._cache_has_nan = False  # the cache of keys and values may have numbers that are not finite
        self.failure: str | None = None  # why nothing can be served any more

    async def serve(self, request: Request, report: Report) -> Completion:
        """A request that was checked before."""
        running = self._begin(request)
        try:
            async with self._barrier.request(lambda: running.aborted or self.failure is not None):
                self._check_works()
                await self._zero_cache_if_needed()
                reason, stop = await self._sample(running, report)
                await self._read(running, len(running.sequence.sampled))
                self._first(running, report)
                self._counters.add(sampled_tokens=len(running.sequence.sampled))
                return running.sequence.completion(reason, stop, self.version)
        except EngineDeadError as error:
            raise self._break(f"the vllm engine failed: {error}") from error
        except EngineGenerateError as error:
            raise InfraError(f"request {request.id!r}: vLLM failed: {error.__cause__}") from error
        except asyncio.CancelledError:
            self._check_works()  # the end of the engine cancels running tasks
            raise
        finally:
            del self._running[running.name]
            self._fetcher.forget(running.name)

    async def abort(self, request_id: str) -> None:
        for running in list(self._running.values()):
            if running.sequence.request.id == request_id:
                running.aborted = True
                self._barrier.check()
                await self._llm.abort(running.name)

    async def update(self, weights: Sequence[tuple[str, Tensor]], version: int, *, in_flight: bool) -> None:
        """Send new weights, which were checked before, through host memory."""
        await self.begin_update(in_flight=in_flight)
        try:
            with closing(chunks(weights)) as infos:
                for info in infos:
                    await self.receive_chunk(info)
        except Exception as error:  # the workers have a part of the new weights
            await self._update.aclose()
            raise self._break(f"the vllm engine failed: the weight update: {type(error).__name__}: {error}") from error
        await self.finish_update(version)

    async def record_sampling(self) -> None:
        """Let the workers note the numbers of what they sample; before the first request."""
        await self._call("recording", self._llm.collective_rpc("ramet_record_sampling"))

    async def connect(self, source: Mapping[str, Any]) -> None:
        """Connect the workers to a sender of weights (`weight_transfer.TransferSource`)."""
        self._check_works()
        request = WeightTransferInitRequest(init_info=dict(source))
        await self._call("connecting to the sender of weights", self._llm.init_weight_transfer_engine(request))

    async def begin_update(self, *, in_flight: bool) -> None:
        """Make running requests wait from now on until `finish_update`; they lose their caches."""
        async with AsyncExitStack() as entered:
            await entered.enter_async_context(self._barrier.update(in_flight=in_flight or self._asleep))
            self._check_works()
            if self._asleep and self._weights is not WeightState.EMPTY:
                raise RuntimeError("the vllm engine is asleep; call wake_weights before its weights are updated")
            await entered.enter_async_context(self._exclusive)
            cut = [running.sequence for running in self._running.values() if running.sequence.sampled]
            again = sum(len(sequence.prompt) + len(sequence.sampled) for sequence in cut)
            self._counters.add(updates_in_flight=int(bool(cut)), recomputed_tokens=again)
            await self._call("the weight update", self._start_update())
            self._update = entered.pop_all()

    async def receive_chunk(self, info: Mapping[str, Any]) -> None:
        """Let the workers receive a part of the new weights (`weight_transfer.Arriving`). If they fail, the update is
        over.
        """
        self._check_works()
        try:
            await self._call("the weight update", receive_chunk(self._llm, info))
        except InfraError:
            await self._update.aclose()
            raise

    async def finish_update(self, version: int) -> None:
        """All parts were received: serve by them."""
        entered, self._update = self._update, AsyncExitStack()
        async with entered:
            self._check_works()
            await self._call("the weight update", self._finish_update(version))

    async def sleep(self) -> None:
        self._check_works()
        if not self._asleep:
            self._asleep = True
            self._weights = WeightState.DROPPED
            if self._can_sleep:  # 1 would copy the weights to the host, 2 drops them
                await self._call("falling asleep", self._llm.sleep(level=2, mode="keep"))
            else:
                if not self._has_warned:
                    self._has_warned = True
                    logger.info("vLLM cannot free memory here (on a CPU, or cluster.colocate=false): asleep, it pauses")
                await self._call("falling asleep", self._llm.pause_generation(mode="keep", clear_cache=True))

    async def wake_weights(self) -> None:
        self._check_works()
        if self._weights is WeightState.DROPPED:
            if self._can_sleep:
                await self._call("waking up", self._llm.wake_up(["weights"]))
            self._weights = WeightState.EMPTY

    async def wake(self) -> None:
        self._check_works()
        if self._asleep:
            if self._weights is not WeightState.HERE:
                raise RuntimeError("the vllm engine has dropped its weights; update them before it is woken")
            if self._can_sleep:
                await self._call("waking up", self._llm.wake_up(["kv_cache"]))
            self._asleep = False
            await self._go_on()

    def end(self) -> None:
        """Fail running requests and end vLLM's processes. May be called twice."""
        self._break("the vllm engine was closed")
        end_processes(self._llm)

    def _begin(self, request: Request) -> RunningRequest:
        stop = request.sampling.stop
        if stop and stop not in self._stops:
            self._stops[stop] = StopStrings(stop, self._encoder)
        self._count += 1
        running = RunningRequest(
            RunningSequence(request, self._stops.get(stop), request.cache_key, 0),
            str(self._count),
            asyncio.current_task(),
        )
        self._running[running.name] = running
        return running

    async def _sample(self, running: RunningRequest, report: Report) -> Ended:
        """Sample until the request ends, for whatever reason."""
        if running.aborted:
            return FinishReason.ABORT, None
        request, sequence = running.sequence.request, running.sequence
        stream = self._llm.generate(tokens_input(request.token_ids.tolist()), self._params(running), running.name)
        async with aclosing(stream) as outputs:  # leaving early ends the request there, too
            async for output in outputs:
                if not sequence.sampled:
                    self._count_prompt(sequence, output.num_cached_tokens or 0)
                ended = self._append(sequence, output)
                if len(sequence.sampled) >= request.first_tokens and not sequence.reported:
                    await self._read(running, request.first_tokens)
                    self._first(running, report)
                if ended is not None:
                    return ended
                if running.aborted:
                    return FinishReason.ABORT, None
        raise InfraError(f"request {request.id!r}: vLLM ended it by itself")

    def _append(self, sequence: RunningSequence, output: RequestOutput) -> Ended | None:
        """Take the new tokens, up to the one that ends the request."""
        sampled = output.outputs[0]
        for number, token in enumerate(sampled.token_ids):
            if sequence.wants_top and sampled.logprobs is not None:
                sequence.top_logprobs.append(tuple(entry.logprob for entry in sampled.logprobs[number].values()))
            ended = sequence.append(token)
            if ended is not None:
                return ended
        return None

    async def _read(self, running: RunningRequest, count: int) -> None:
        """Give the sequence the numbers of its first `count` tokens."""
        logprobs, entropies, versions = await self._fetcher.get(running.name, count)
        if not all(map(math.isfinite, (*logprobs, *entropies))):
            self._cache_has_nan = True
            self._counters.add(failed_requests=1)
            raise InfraError(f"request {running.sequence.request.id!r}: its logits are not finite")
        running.sequence.logprobs = array("f", logprobs)
        running.sequence.entropies = array("f", entropies)
        running.sequence.versions = array("i", versions)

    def _first(self, running: RunningRequest, report: Report) -> None:
        """Report once, when the numbers were read."""
        if not running.sequence.reported:
            running.sequence.reported = True
            report(running.sequence.first_report())

    def _count_prompt(self, sequence: RunningSequence, cached: int) -> None:
        is_fork, length = bool(sequence.request.fork_of), len(sequence.prompt)
        sequence.cached = cached
        self._counters.add(
            prompt_tokens=length,
            cached_tokens=cached,
            forks=int(is_fork),
            recomputed_prefix_tokens=length - 1 - cached if is_fork else 0,
        )

    async def _start_update(self) -> None:
        if not self._asleep:  # then there is no cache
            await self._drop_cache()  # prefixes of old weights are silently wrong
        await self._llm.start_weight_update()

    async def _finish_update(self, version: int) -> None:
        await finish_update(self._llm, version)
        await self._llm.collective_rpc("ramet_set_version", args=(version,))
        self.version = version
        self._weights = WeightState.HERE
        await self._go_on()

    async def _zero_cache_if_needed(self) -> None:
        """Zero the cache on a CPU: NaN of a failed request reaches the next one in its memory (vLLM 0.32.0)."""
        if self._cache_has_nan and not self._asleep:
            # Not cancelled with the request that begins it: vLLM would stay paused.
            await asyncio.shield(asyncio.create_task(self._zero_cache()))

    async def _zero_cache(self) -> None:
        async with self._exclusive:
            if self._cache_has_nan and not self._asleep:  # it may have been done, or vLLM gone asleep, meanwhile
                await self._call("overwriting the cache", self._drop_cache())
                await self._go_on()

    async def _drop_cache(self) -> None:
        """Pause, and let running requests compute their keys and values again after it."""
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        if self._cache_has_nan:
            await self._llm.collective_rpc("ramet_zero_cache")
            self._cache_has_nan = False

    async def _go_on(self) -> None:
        if not self._asleep:
            await self._call("the resume", self._llm.resume_generation())

    def _params(self, running: RunningRequest) -> SamplingParams:
        sampling = running.sequence.request.sampling
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            seed=running.sequence.request.seed if self._seeds else None,
            max_tokens=sampling.max_tokens,
            logprobs=running.sequence.request.top_logprobs or None,
            ignore_eos=True,  # the request's stop tokens are looked for here
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={NAME_KEY: running.name},
        )

    async def _fetch(self, wanted: list[tuple[str, int]], ended: list[str]) -> list[SampledNumbers]:
        call = self._llm.collective_rpc("ramet_get_numbers", args=(wanted, ended))
        answers: list[Any] = await self._call("reading log-probabilities", call)  # by worker; last the scheduler's
        numbers: list[SampledNumbers] = answers[0][0]
        steps: int = answers[0][1]
        preemptions, peak = answers[-1]
        self._counters.add(decode_steps=steps - self._steps, preemptions=preemptions)
        self._counters.note_cache(peak)
        self._steps = steps
        return numbers

    async def _call(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """A call to vLLM. If it fails or takes too long, nothing is known of vLLM any more: the engine has failed."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work
        except TimeoutError as error:
            raise self._break(f"the vllm engine failed: {what} took over {self._timeout_s:.0f} s") from error
        except Exception as error:
            raise self._break(f"the vllm engine failed: {what}: {type(error).__name__}: {error}") from error

    def _break(self, why: str) -> InfraError:
        """Serve nothing any more, and fail running requests."""
        if self.failure is None:
            self.failure = why
            for running in self._running.values():
                if running.task is not None and running.task is not asyncio.current_task():
                    running.task.cancel()
            self._barrier.check()
        return InfraError(self.failure)

    def _check_works(self) -> None:
        if self.failure is not None:
            raise InfraError(self.failure)
