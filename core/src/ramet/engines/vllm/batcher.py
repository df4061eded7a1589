"""Requests to vLLM, its outputs to events. Synchronous and free of threads.

vLLM schedules, computes and samples; stops are looked for here, by the code of the engine `torch`, between two steps:
a request that ends so never samples a token too many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel
from vllm import LLMEngine, RequestOutput, SamplingParams
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from ramet.engines.counters import Counters
from ramet.engines.protocol import FinishReason, Request
from ramet.engines.sequence import Event, RunningSequence, SequenceDone, SequenceFailed, SequenceFirst
from ramet.engines.stops import StopStrings
from ramet.engines.vllm.probe import KEY, Probe
from ramet.engines.weights import check_weights
from ramet.errors import InfraError
from ramet.models.encoder import Encoder


@dataclass(slots=True, eq=False)
class Job:
    """A sequence and vLLM's name for it: ids come back, and the runner may still know them."""

    sequence: RunningSequence
    name: str


class VllmBatcher:
    """Sequences in, events out (`ramet.engines.worker.RequestBatcher`). Used by one thread."""

    def __init__(
        self, engine: LLMEngine, probe: Probe, *, shapes: PreTrainedModel, encoder: Encoder, counters: Counters
    ) -> None:
        """`shapes` tells which weights the model has."""
        self.version = 0  # of the weights
        self.epoch = 0  # weight updates so far
        self._engine = engine
        self._probe = probe
        self._shapes = shapes
        self._encoder = encoder
        self._counters = counters
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        self._waiting: list[Job] = []  # for an epoch to come
        self._running: dict[str, Job] = {}
        self._named = 0

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not (self._waiting or self._running)

    @property
    def running(self) -> bool:
        return bool(self._running)

    @property
    def drained(self) -> bool:
        """Nothing of this epoch is left."""
        return not self._running

    def submit(self, request: Request, epoch: int) -> RunningSequence:
        """Queue a request that was checked before; it waits until its epoch has begun."""
        stop = request.sampling.stop
        if stop and stop not in self._stops:
            self._stops[stop] = StopStrings(stop, self._encoder)
        sequence = RunningSequence(request, self._stops.get(stop), request.cache_key, epoch)
        self._named += 1
        job = Job(sequence, str(self._named))
        if epoch > self.epoch:
            self._waiting.append(job)
        else:
            self._start(job)
        return sequence

    def step(self) -> list[Event]:
        """One step of vLLM: at most one token for every request."""
        outputs = [o for o in self._engine.step() if isinstance(o, RequestOutput) and o.request_id in self._running]
        self._counters.add(decode_steps=1)
        if not outputs:
            return []
        names = [output.request_id for output in outputs]
        tokens = [_token(output) for output in outputs]
        numbers = zip(*self._probe.take(names, tokens), strict=True)
        events: list[Event] = []
        for output, token, (logprob, entropy) in zip(outputs, tokens, numbers, strict=True):
            events += self._take(self._running[output.request_id], output, token, logprob, entropy)
        return events

    def abort(self, request_id: str) -> list[Event]:
        """End a request with what it has; unknown ids pass."""
        for job in [*self._waiting, *self._running.values()]:
            if job.sequence.request.id == request_id:
                return self._finish(job, FinishReason.ABORT, None, over=False)
        return []

    def release(self, keys: Sequence[str]) -> None:
        """vLLM finds prefixes by their content and drops the least recently used: keys mean nothing to it."""

    def load(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Copy new weights in place. Raises `ValueError`, and changes nothing, if they do not fit."""
        check_weights(self._shapes, weights)
        try:
            # vLLM packs weights on loading: only `reload_weights` finds the way back to its parameters.
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        except ValueError as error:
            raise RuntimeError(f"vLLM could not take the weights: {error}") from error

    def next_epoch(self, version: int | None) -> None:
        """The weights are of this version from now on: forget every cache, and let what runs compute its own again.

        None: the weights of this epoch were refused, and the old ones stay with their caches.
        """
        self.epoch += 1
        if version is not None:
            self._cut()
            self.version = version
        due = [job for job in self._waiting if job.sequence.epoch <= self.epoch]
        self._waiting = [job for job in self._waiting if job.sequence.epoch > self.epoch]
        for job in due:
            self._start(job)

    def _cut(self) -> None:
        """Send what runs back to vLLM's queue, with its generators and without its blocks, and forget all prefixes."""
        begun = [job.sequence for job in self._running.values() if job.sequence.sampled]
        for sequence in begun:
            sequence.cut(self.version)
        self._counters.add(
            updates_in_flight=int(bool(self._running)),
            recomputed_tokens=sum(len(s.context) - 1 for s in begun),  # vLLM does not say which of them it shared
        )
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM did not reset its prefix cache: blocks are still in use")

    def _start(self, job: Job) -> None:
        request, sampling = job.sequence.request, job.sequence.request.sampling
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=request.seed,
            max_tokens=sampling.max_tokens,
            ignore_eos=True,  # the stop tokens are those of the request, looked for here
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={KEY: job.name},
        )
        self._engine.add_request(job.name, tokens_input(request.token_ids.tolist()), params)
        self._running[job.name] = job

    def _take(self, job: Job, output: RequestOutput, token: int, logprob: float, entropy: float) -> list[Event]:
        """A request got its next token."""
        sequence = job.sequence
        if not sequence.sampled:
            self._count_prompt(sequence, output.num_cached_tokens or 0)
        if not (math.isfinite(logprob) and math.isfinite(entropy)):
            self._leave(job, over=output.finished)
            self._counters.add(failed_requests=1)
            problem = InfraError(f"request {sequence.request.id!r}: its logits are not finite")
            return [SequenceFailed(sequence, problem)]
        sequence.logprobs.append(logprob)
        sequence.entropies.append(entropy)
        ended = sequence.append(token)
        if ended is not None:
            return self._finish(job, *ended, over=output.finished)
        if output.finished:
            raise RuntimeError(f"vLLM ended a request by itself: {output.outputs[0].finish_reason}")
        return [self._first(job)] if len(sequence.sampled) == sequence.request.first_tokens else []

    def _count_prompt(self, sequence: RunningSequence, cached: int) -> None:
        is_fork, length = bool(sequence.request.fork_of), len(sequence.prompt)
        sequence.cached = cached
        self._counters.add(
            prompt_tokens=length,
            cached_tokens=cached,
            forks=int(is_fork),
            recomputed_prefix_tokens=length - 1 - cached if is_fork else 0,
        )

    def _first(self, job: Job) -> SequenceFirst:
        job.sequence.reported = True
        return SequenceFirst(job.sequence, job.sequence.first_report())

    def _finish(self, job: Job, reason: FinishReason, stop: str | None, *, over: bool) -> list[Event]:
        """`over`: vLLM knows already."""
        sequence = job.sequence
        events: list[Event] = [] if sequence.reported else [self._first(job)]
        completion = sequence.completion(reason, stop, self.version)
        self._counters.add(sampled_tokens=len(sequence.sampled))
        self._leave(job, over=over)
        return [*events, SequenceDone(sequence, completion)]

    def _leave(self, job: Job, *, over: bool) -> None:
        if self._running.pop(job.name, None) is None:
            self._waiting.remove(job)
        elif not over:
            self._engine.abort_request([job.name])


def _token(output: RequestOutput) -> int:
    (token,) = output.outputs[0].token_ids
    return int(token)
