"""What runs inside vLLM's workers: exact numbers of every sampled token, and the version of the weights it is from.

vLLM's own log-probabilities are those before the temperature or those of a cut-off distribution; its logits processors
see the whole distribution of every row before both. So a processor that changes nothing computes one step's log-softmax
at each request's temperature, and a hook after the sampler takes from it what was sampled. No line here waits for the
device, since vLLM schedules a step while the one before it computes: a step's numbers are copied to pinned memory in
the order of the device's work, and read once that copy has ended, as it has when the step's tokens are delivered.
The engine's process fetches the numbers. vLLM imports this module in each worker (`worker_extension_cls`), and with it
the receiver of new weights becomes known there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_tp_group
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from ramet.engines.vllm.logprob_fetcher import SampledNumbers
from ramet.engines.vllm.weight_transfer import BACKEND, WeightReceiver
from ramet.processes import end_by_parent_alone, end_with_owner

ROWS = 32  # whose entropies are computed at once
MAX_WAITING = 256  # steps
NAME_KEY = "ramet"  # of `SamplingParams.extra_args`: the request's name, as vLLM knows it

WeightTransferEngineFactory.register_engine(BACKEND, WeightReceiver)


@dataclass(slots=True)
class SequenceNumbers:
    """Of one request's sampled tokens, in order."""

    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def put(self, position: int, logprob: float, entropy: float, version: int) -> None:
        """At `position`. What was there is replaced: it was sampled after a part of a prompt, and vLLM dropped it."""
        if position > len(self.logprobs):
            raise RuntimeError(f"sampled token {position} was measured after {len(self.logprobs)} others")
        for numbers in (self.logprobs, self.entropies, self.versions):
            del numbers[position:]
        self.logprobs.append(logprob)
        self.entropies.append(entropy)
        self.versions.append(version)


@dataclass(frozen=True, slots=True)
class BatchedRequest:
    """A request in the batch. `output` is vLLM's own list of its sampled tokens, which grows: by placeholders where
    steps are scheduled ahead of the tokens.
    """

    name: str
    temperature: float
    output: Sequence[int]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """R requests, V tokens of the vocabulary. Its tokens are being sampled."""

    logps: Tensor  # [R, V]
    entropies: Tensor  # [R]
    tokens: Sequence[tuple[str, int]]  # [R], each request's name and the position of its token
    version: int


@dataclass(frozen=True, slots=True)
class SampledStep:
    """R requests. `numbers` may be read when `copied` has happened; None on a CPU, where it has."""

    numbers: Tensor  # [2, R] in host memory: log-probabilities of the sampled tokens, entropies
    copied: torch.cuda.Event | None
    tokens: Sequence[tuple[str, int]]  # [R]
    version: int

    def is_copied(self) -> bool:
        return self.copied is None or bool(self.copied.query())  # type: ignore[no-untyped-call]


class LogprobRecorder:
    """The numbers of a worker's requests. They wait here for being fetched."""

    def __init__(self) -> None:
        self.version = 0  # of the weights
        self.steps = 0
        self._numbers: dict[str, SequenceNumbers] = {}
        self._step: MeasuredStep | None = None
        self._sampled: deque[SampledStep] = deque()

    def measure(self, logits: Tensor, temperatures: Tensor, requests: Sequence[BatchedRequest]) -> None:
        """Measure a step before it is sampled: logits `[R, V]`, temperatures `[R]`."""
        logps = torch.log_softmax(logits / temperatures[:, None], dim=-1)
        # By rows, since what is computed here is no part of the memory that vLLM has measured.
        entropies = torch.cat([-(rows.exp().mul_(rows)).sum(dim=-1) for rows in torch.split(logps, ROWS)])
        tokens = [(request.name, len(request.output)) for request in requests]
        self._step = MeasuredStep(logps, entropies, tokens, self.version)
        self.steps += 1

    def sampled(self, tokens: Tensor) -> None:
        """Take the tokens `[R]` of the step that was measured last; it is not waited for."""
        step, self._step = self._step, None
        if step is not None:  # vLLM also samples from dummies, which are not measured
            logps = step.logps.gather(1, tokens[: len(step.tokens), None].long()).squeeze(1)
            numbers, copied = _copied_to_host(torch.stack([logps, step.entropies]))
            self._sampled.append(SampledStep(numbers, copied, step.tokens, step.version))
        if len(self._sampled) >= MAX_WAITING:
            self._read_copied()

    def get(self, wanted: Sequence[tuple[str, int]]) -> list[SampledNumbers]:
        """Return the numbers of each request's first tokens, which were delivered."""
        self._read_copied()
        known = [(self._numbers.get(name) or SequenceNumbers(), count) for name, count in wanted]
        return [(n.logprobs[:count], n.entropies[:count], n.versions[:count]) for n, count in known]

    def _read_copied(self) -> None:
        """Note the numbers of the steps whose copies have ended: all but those that the device still computes."""
        while self._sampled and self._sampled[0].is_copied():
            step = self._sampled.popleft()
            for (name, position), logprob, entropy in zip(step.tokens, *step.numbers.tolist(), strict=True):
                if position == 0:
                    self._numbers[name] = SequenceNumbers()
                if name in self._numbers:  # else it has ended: a step was scheduled before that was known
                    self._numbers[name].put(position, logprob, entropy, step.version)

    def forget(self, names: Sequence[str]) -> None:
        for name in names:
            self._numbers.pop(name, None)


_RECORDER = LogprobRecorder()  # a worker is a process, and vLLM makes processor and extension by itself


class LogprobProcessor(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Feeds the recorder of the first worker: under tensor parallelism every worker sees the same logits."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        end_with_owner()  # when their owner is killed, nobody ends vLLM's processes (0.32.0), and they compute on
        if get_tp_group().world_size > 1:  # otherwise this is the scheduler's process, whose executor has called it
            end_by_parent_alone()
        self._is_first = get_tp_group().rank_in_group == 0
        self._device = device
        self._by_row: dict[int, BatchedRequest] = {}
        self._requests: list[BatchedRequest] = []
        self._temperatures = torch.empty(0)  # [R]

    def is_argmax_invariant(self) -> bool:
        return False  # it is, but then vLLM would leave it out for greedy requests

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if process_dict_updates(self._by_row, batch_update, _batched_request):
            self._requests = [self._by_row[row] for row in range(len(self._by_row))]
            temperatures = [request.temperature for request in self._requests]
            pinned = torch.tensor(temperatures, pin_memory=self._device.type != "cpu")  # else the copy waits
            self._temperatures = pinned.to(self._device, non_blocking=True)

    def apply(self, logits: Tensor) -> Tensor:
        if self._is_first:
            _RECORDER.measure(logits, self._temperatures, self._requests)
        return logits


class WorkerExtension:
    """Methods that vLLM adds to its workers, called by `collective_rpc`. Only the first worker has numbers."""

    model_runner: Any  # the worker's

    def ramet_record_sampling(self) -> None:
        """From now on numbers are noted, in the first worker."""
        self.model_runner.sampler.register_forward_hook(_note_sampled)

    def ramet_get_numbers(self, wanted: list[tuple[str, int]], ended: list[str]) -> tuple[list[SampledNumbers], int]:
        """Numbers of these requests' first tokens, and the steps so far; the requests in `ended` are forgotten."""
        numbers = _RECORDER.get(wanted)
        _RECORDER.forget(ended)
        return numbers, _RECORDER.steps

    def ramet_zero_cache(self) -> None:
        """Overwrite all keys and values."""
        for cache in self.model_runner.kv_caches:
            cache.zero_()

    def ramet_set_version(self, version: int) -> None:
        """Whatever is sampled from now on is of this version."""
        _RECORDER.version = version


def _copied_to_host(numbers: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Return where the numbers will be, in host memory, and the event after which they are there."""
    if numbers.device.type == "cpu":
        return numbers, None
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()
    return host, copied


def _note_sampled(_sampler: nn.Module, _inputs: object, output: SamplerOutput) -> None:
    _RECORDER.sampled(output.sampled_token_ids[:, 0])


def _batched_request(params: SamplingParams, _prompt: list[int] | None, output: list[int]) -> BatchedRequest:
    """Greedy numbers are those at temperature 1."""
    assert params.extra_args is not None
    return BatchedRequest(params.extra_args[NAME_KEY], params.temperature or 1.0, output)
