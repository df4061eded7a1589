"""What runs inside vLLM's workers: exact numbers of every sampled token, and the version of the weights it is from.

vLLM's own log-probabilities are those before the temperature or those of a cut-off distribution; its logits processors
see the whole distribution of every row before both. So a processor that changes nothing keeps one step's log-softmax at
each request's temperature until the tokens of this step are known, and then their numbers until the engine's process
fetches them. vLLM imports this module in each worker (`worker_extension_cls`), and with it the weight transfer through
host memory becomes known there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_tp_group
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from ramet.engines.vllm.logprob_fetcher import SampledNumbers
from ramet.engines.vllm.weight_transfer import BACKEND, HostMemoryReceiver
from ramet.processes import end_by_parent_alone, end_with_owner

NAME_KEY = "ramet"  # of `SamplingParams.extra_args`: the request's name, as vLLM knows it

WeightTransferEngineFactory.register_engine(BACKEND, HostMemoryReceiver)


@dataclass(slots=True)
class SequenceNumbers:
    """Of one request's sampled tokens, in order."""

    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def put(self, position: int, logprob: float, entropy: float, version: int) -> None:
        if position != len(self.logprobs):
            raise RuntimeError(f"sampled token {position} was measured after {len(self.logprobs)} others")
        self.logprobs.append(logprob)
        self.entropies.append(entropy)
        self.versions.append(version)


@dataclass(frozen=True, slots=True)
class BatchedRequest:
    """A request in the batch. `output` is vLLM's own list of its sampled tokens, which grows."""

    name: str
    temperature: float
    output: Sequence[int]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step whose tokens are not known yet. R requests, V tokens of the vocabulary."""

    logps: Tensor  # [R, V]
    entropies: Tensor  # [R]
    requests: Sequence[tuple[BatchedRequest, int]]  # [R], each with the position of its token
    version: int


class LogprobRecorder:
    """The numbers of a worker's requests. They wait for their tokens one step, and then for being fetched."""

    def __init__(self) -> None:
        self.version = 0  # of the weights
        self.steps = 0
        self._numbers: dict[str, SequenceNumbers] = {}
        self._step: MeasuredStep | None = None

    def measure(self, logits: Tensor, temperatures: Tensor, requests: Sequence[BatchedRequest]) -> None:
        """Measure a step: logits `[R, V]`, temperatures `[R]`."""
        self.settle()  # also frees the last step's log-softmax before another as large is made
        logps = torch.log_softmax(logits / temperatures[:, None], dim=-1)
        entropies = -(logps.exp().mul_(logps)).sum(dim=-1)
        positions = [(request, len(request.output)) for request in requests]
        self._step = MeasuredStep(logps, entropies, positions, self.version)
        self.steps += 1

    def settle(self) -> None:
        """Look the tokens of the last step up. A row without one was part of a prompt that is computed in parts."""
        step, self._step = self._step, None
        if step is None:
            return
        sampled = [i for i, (request, position) in enumerate(step.requests) if len(request.output) > position]
        if not sampled:
            return
        rows = torch.tensor(sampled, device=step.logps.device)
        ids = [step.requests[i][0].output[step.requests[i][1]] for i in sampled]
        logprobs = step.logps[rows, torch.tensor(ids, device=step.logps.device)].tolist()
        for i, logprob, entropy in zip(sampled, logprobs, step.entropies[rows].tolist(), strict=True):
            request, position = step.requests[i]
            self._numbers.setdefault(request.name, SequenceNumbers()).put(position, logprob, entropy, step.version)

    def get(self, wanted: Sequence[tuple[str, int]]) -> list[SampledNumbers]:
        """The numbers of each request's first tokens."""
        self.settle()
        found = [(self._numbers.get(name) or SequenceNumbers(), count) for name, count in wanted]
        return [(n.logprobs[:count], n.entropies[:count], n.versions[:count]) for n, count in found]

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
            self._temperatures = torch.tensor(temperatures, device=self._device)

    def apply(self, logits: Tensor) -> Tensor:
        if self._is_first:
            _RECORDER.measure(logits, self._temperatures, self._requests)
        return logits


class WorkerExtension:
    """Methods that vLLM adds to its workers, called by `collective_rpc`. Only the first worker has numbers."""

    model_runner: Any  # the worker's

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
        _RECORDER.settle()
        _RECORDER.version = version


def _batched_request(params: SamplingParams, _prompt: list[int] | None, output: list[int]) -> BatchedRequest:
    """Greedy numbers are those at temperature 1."""
    assert params.extra_args is not None
    return BatchedRequest(params.extra_args[NAME_KEY], params.temperature or 1.0, output)
