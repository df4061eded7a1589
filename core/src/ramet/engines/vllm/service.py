"""Requests, updates and pauses over vLLM's AsyncLLM. Lives on one loop; nothing here may be called from another.

Stops are looked for here, by the code of the other engines, in the stream of tokens: what vLLM sampled beyond one is
dropped. Numbers come from vLLM's first worker (`extension`), weights go to all of them (`transfer`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
from array import array
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
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
from ramet.engines.sequence import RunningSequence
from ramet.engines.sleeping import ONLY_PAUSES
from ramet.engines.stops import StopStrings
from ramet.engines.vllm.numbers import Numbers, Taken
from ramet.engines.vllm.probe import KEY
from ramet.engines.vllm.transfer import chunks, receive
from ramet.engines.vllm.turns import Turns
from ramet.errors import InfraError
from ramet.models.encoder import Encoder

T = TypeVar("T")
Ended = tuple[FinishReason, str | None]
Report = Callable[[FirstReport], None]
END_S = 10.0  # for vLLM to end its processes; then they are killed
logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """A request under way. `name` is vLLM's name for it: the worker may still know an id that comes back."""

    sequence: RunningSequence
    name: str
    task: asyncio.Task[Any] | None
    aborted: bool = False


class Service:
    """Serves until something breaks or it is ended; then everything raises `InfraError`."""

    def __init__(
        self, llm: AsyncLLM, *, encoder: Encoder, counters: Counters, timeout_s: float, can_sleep: bool
    ) -> None:
        """`timeout_s` bounds each call to vLLM's workers."""
        self.version = 0  # of the weights
        self._llm = llm
        self._encoder = encoder
        self._counters = counters
        self._timeout_s = timeout_s
        self._can_sleep = can_sleep
        self._turns = Turns()
        self._numbers = Numbers(self._take)
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        self._jobs: dict[str, Job] = {}
        self._named = 0
        self._steps = 0
        self._paused = False
        self._asleep = False
        self._said = False  # that sleep frees nothing
        self._spoiled = False  # numbers that are not finite may stand in the cache of keys and values
        self._broken: str | None = None  # why nothing can be served any more

    async def serve(self, request: Request, report: Report) -> Completion:
        """A request that was checked before."""
        job = self._begin(request)
        try:
            async with self._turns.request(lambda: job.aborted or self._broken is not None):
                self._check()
                reason, stop = await self._sample(job, report)
                await self._read(job, len(job.sequence.sampled))
                self._first(job, report)
                self._counters.add(sampled_tokens=len(job.sequence.sampled))
                return job.sequence.completion(reason, stop, self.version)
        except EngineDeadError as error:
            raise self._break(f"the vllm engine failed: {error}") from error
        except EngineGenerateError as error:
            raise InfraError(f"request {request.id!r}: vLLM failed: {error.__cause__}") from error
        except asyncio.CancelledError:
            self._check()  # the end of everything cancels what is under way
            raise
        finally:
            del self._jobs[job.name]
            self._numbers.forget(job.name)

    async def abort(self, request_id: str) -> None:
        for job in list(self._jobs.values()):
            if job.sequence.request.id == request_id:
                job.aborted = True
                self._turns.look()
                await self._llm.abort(job.name)

    async def update(self, weights: Sequence[tuple[str, Tensor]], version: int, *, in_flight: bool) -> None:
        """Send new weights, which were checked before, through host memory."""
        with closing(chunks(weights)) as infos:
            await self.receive(infos, version, in_flight=in_flight)

    async def connect(self, info: Mapping[str, Any]) -> None:
        """Introduce the workers to a sender of weights."""
        self._check()
        request = WeightTransferInitRequest(init_info=dict(info))
        await self._call("meeting the sender of weights", self._llm.init_weight_transfer_engine(request))

    async def receive(self, infos: Iterable[Mapping[str, Any]], version: int, *, in_flight: bool) -> None:
        """Let the workers receive new weights. The requests under way freeze meanwhile, and lose their caches."""
        async with self._turns.update(in_flight=in_flight):
            self._check()
            if self._asleep:
                raise RuntimeError("the vllm engine is asleep; wake it before its weights are updated")
            cut = [job.sequence for job in self._jobs.values() if job.sequence.sampled]
            await self._call("the weight update", self._replace(infos, version))
            again = sum(len(sequence.prompt) + len(sequence.sampled) for sequence in cut)
            self._counters.add(updates_in_flight=int(bool(cut)), recomputed_tokens=again)

    async def pause(self) -> None:
        self._check()
        self._paused = True
        await self._call("the pause", self._llm.pause_generation(mode="keep", clear_cache=False))

    async def resume(self) -> None:
        self._check()
        self._paused = False
        await self._go_on()

    async def sleep(self) -> None:
        self._check()
        if not self._asleep:
            self._asleep = True
            if self._can_sleep:
                await self._call("falling asleep", self._llm.sleep(level=1, mode="keep"))
            else:
                if not self._said:
                    self._said = True
                    logger.info(ONLY_PAUSES, "vllm")
                await self._call("falling asleep", self._llm.pause_generation(mode="keep", clear_cache=True))

    async def wake(self) -> None:
        self._check()
        if self._asleep:
            if self._can_sleep:
                await self._call("waking up", self._llm.wake_up())
            self._asleep = self._paused = False
            await self._go_on()

    def end(self) -> None:
        """Fail what is under way and end vLLM's processes. May be called twice."""
        self._break("the vllm engine was closed")
        self._llm.shutdown(timeout=END_S)
        multiprocessing.active_children()  # vLLM does not wait for those that it kills

    def _begin(self, request: Request) -> Job:
        stop = request.sampling.stop
        if stop and stop not in self._stops:
            self._stops[stop] = StopStrings(stop, self._encoder)
        self._named += 1
        job = Job(
            RunningSequence(request, self._stops.get(stop), request.cache_key, 0),
            str(self._named),
            asyncio.current_task(),
        )
        self._jobs[job.name] = job
        return job

    async def _sample(self, job: Job, report: Report) -> Ended:
        """Until the request ends, for whatever reason."""
        if job.aborted:
            return FinishReason.ABORT, None
        request, sequence = job.sequence.request, job.sequence
        stream = self._llm.generate(tokens_input(request.token_ids.tolist()), _params(job), job.name)
        async with aclosing(stream) as outputs:  # leaving early ends the request there, too
            async for output in outputs:
                if not sequence.sampled:
                    self._count_prompt(sequence, output.num_cached_tokens or 0)
                ended = self._append(sequence, output)
                if len(sequence.sampled) >= request.first_tokens and not sequence.reported:
                    await self._read(job, request.first_tokens)
                    self._first(job, report)
                if ended is not None:
                    return ended
                if job.aborted:
                    return FinishReason.ABORT, None
        raise InfraError(f"request {request.id!r}: vLLM ended it by itself")

    def _append(self, sequence: RunningSequence, output: RequestOutput) -> Ended | None:
        """Take the new tokens, up to the one that ends the request."""
        for token in output.outputs[0].token_ids:
            ended = sequence.append(token)
            if ended is not None:
                return ended
        return None

    async def _read(self, job: Job, count: int) -> None:
        """Give the sequence the numbers of its first `count` tokens."""
        logprobs, entropies, versions = await self._numbers.take(job.name, count)
        if not all(map(math.isfinite, (*logprobs, *entropies))):
            self._spoiled = True
            self._counters.add(failed_requests=1)
            raise InfraError(f"request {job.sequence.request.id!r}: its logits are not finite")
        job.sequence.logprobs = array("f", logprobs)
        job.sequence.entropies = array("f", entropies)
        job.sequence.versions = array("i", versions)

    def _first(self, job: Job, report: Report) -> None:
        """Report once, when the numbers were read."""
        if not job.sequence.reported:
            job.sequence.reported = True
            report(job.sequence.first_report())

    def _count_prompt(self, sequence: RunningSequence, cached: int) -> None:
        is_fork, length = bool(sequence.request.fork_of), len(sequence.prompt)
        sequence.cached = cached
        self._counters.add(
            prompt_tokens=length,
            cached_tokens=cached,
            forks=int(is_fork),
            recomputed_prefix_tokens=length - 1 - cached if is_fork else 0,
        )

    async def _replace(self, infos: Iterable[Mapping[str, Any]], version: int) -> None:
        await self._llm.pause_generation(mode="keep", clear_cache=True)  # prefixes of old weights are silently wrong
        if self._spoiled:
            await self._llm.collective_rpc("ramet_clean")
            self._spoiled = False
        await receive(self._llm, infos, version)
        await self._llm.collective_rpc("ramet_serve", args=(version,))
        self.version = version
        await self._go_on()

    async def _go_on(self) -> None:
        if not (self._paused or self._asleep):
            await self._call("the resume", self._llm.resume_generation())

    async def _take(self, wanted: list[tuple[str, int]], over: list[str]) -> list[Taken]:
        call = self._llm.collective_rpc("ramet_take", args=(wanted, over))
        answers: list[tuple[list[Taken], int]] = await self._call("reading log-probabilities", call)
        taken, steps = answers[0]
        self._counters.add(decode_steps=steps - self._steps)
        self._steps = steps
        return taken

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
        """Serve nothing any more, and fail what is under way."""
        if self._broken is None:
            self._broken = why
            for job in self._jobs.values():
                if job.task is not None and job.task is not asyncio.current_task():
                    job.task.cancel()
            self._turns.look()
        return InfraError(self._broken)

    def _check(self) -> None:
        if self._broken is not None:
            raise InfraError(self._broken)


def _params(job: Job) -> SamplingParams:
    sampling = job.sequence.request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=job.sequence.request.seed,
        max_tokens=sampling.max_tokens,
        ignore_eos=True,  # the stop tokens are those of the request, looked for here
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={KEY: job.name},
    )
