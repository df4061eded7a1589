"""What runs inside vLLM's worker processes: exact numbers of every sampled token, and the version that sampled it.

A worker's logits are out of reach of the process that asked. So the worker measures them where it samples, as `probe`
does in one process, and keeps per request what was asked for until it is fetched. vLLM imports this module in each
worker (`worker_extension_cls`), and with it the weight transfer through host memory becomes known there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_tp_group
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from ramet.engines.vllm.owner import follow_owner
from ramet.engines.vllm.probe import KEY
from ramet.engines.vllm.receive import BACKEND, HostMemoryReceiver

Taken: TypeAlias = tuple[list[float], list[float], list[int]]  # log-probabilities, entropies, versions

WeightTransferEngineFactory.register_engine(BACKEND, HostMemoryReceiver)


@dataclass(slots=True)
class Numbers:
    """Of one request's sampled tokens, in order."""

    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def put(self, position: int, logprob: float, entropy: float, version: int) -> None:
        if position != len(self.logprobs):
            raise RuntimeError(f"sampled token {position} was measured behind {len(self.logprobs)} others")
        self.logprobs.append(logprob)
        self.entropies.append(entropy)
        self.versions.append(version)


@dataclass(frozen=True, slots=True)
class Row:
    """A request in the batch. `output` is vLLM's own list of its sampled tokens, which grows."""

    name: str
    temperature: float
    output: Sequence[int]


@dataclass(frozen=True, slots=True)
class Step:
    """A step whose tokens are not known yet. R rows, V tokens of the vocabulary."""

    logps: Tensor  # [R, V]
    entropies: Tensor  # [R]
    rows: Sequence[tuple[Row, int]]  # [R], each with the position of its token
    version: int


class Recorder:
    """The numbers of a worker's requests. They wait for their tokens one step, and then for being fetched."""

    def __init__(self) -> None:
        self.version = 0  # of the weights
        self.steps = 0
        self._numbers: dict[str, Numbers] = {}
        self._step: Step | None = None

    def keep(self, logits: Tensor, temperatures: Tensor, rows: Sequence[Row]) -> None:
        """Measure the logits `[R, V]` of a step."""
        self.settle()
        logps = torch.log_softmax(logits / temperatures[:, None], dim=-1)
        entropies = -(logps.exp().mul_(logps)).sum(dim=-1)
        self._step = Step(logps, entropies, [(row, len(row.output)) for row in rows], self.version)
        self.steps += 1

    def settle(self) -> None:
        """Look the tokens of the last step up. A row without one was part of a prompt that is computed in parts."""
        step, self._step = self._step, None
        if step is None:
            return
        sampled = [i for i, (row, position) in enumerate(step.rows) if len(row.output) > position]
        if not sampled:
            return
        rows = torch.tensor(sampled, device=step.logps.device)
        tokens = torch.tensor([step.rows[i][0].output[step.rows[i][1]] for i in sampled], device=step.logps.device)
        numbers = zip(sampled, step.logps[rows, tokens].tolist(), step.entropies[rows].tolist(), strict=True)
        for i, logprob, entropy in numbers:
            row, position = step.rows[i]
            self._numbers.setdefault(row.name, Numbers()).put(position, logprob, entropy, step.version)

    def take(self, wanted: Sequence[tuple[str, int]]) -> list[Taken]:
        """The numbers of each request's first tokens."""
        self.settle()
        found = [(self._numbers.get(name) or Numbers(), count) for name, count in wanted]
        return [(n.logprobs[:count], n.entropies[:count], n.versions[:count]) for n, count in found]

    def forget(self, names: Sequence[str]) -> None:
        for name in names:
            self._numbers.pop(name, None)


_RECORDER = Recorder()  # a worker is a process, and vLLM makes processor and extension by itself


class Watch(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Feeds the recorder of the first worker: under tensor parallelism every worker sees the same logits."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        follow_owner()
        self._first = get_tp_group().rank_in_group == 0
        self._device = device
        self._requests: dict[int, Row] = {}
        self._rows: list[Row] = []
        self._temperatures = torch.empty(0)  # [R]

    def is_argmax_invariant(self) -> bool:
        return False  # it is, but then greedy requests would pass by

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if process_dict_updates(self._requests, batch_update, _row):
            self._rows = [self._requests[index] for index in range(len(self._requests))]
            self._temperatures = torch.tensor([row.temperature for row in self._rows], device=self._device)

    def apply(self, logits: Tensor) -> Tensor:
        if self._first:
            _RECORDER.keep(logits, self._temperatures, self._rows)
        return logits


class Extension:
    """Methods that vLLM adds to its workers, called by `collective_rpc`. Only the first worker has numbers."""

    model_runner: Any  # the worker's

    def ramet_take(self, wanted: list[tuple[str, int]], over: list[str]) -> tuple[list[Taken], int]:
        """Numbers of these requests' first tokens, and the steps so far; the requests in `over` are forgotten."""
        taken = _RECORDER.take(wanted)
        _RECORDER.forget(over)
        return taken, _RECORDER.steps

    def ramet_clean(self) -> None:
        """Overwrite all keys and values. On a CPU, NaN behind the end of a sequence reaches it (vLLM 0.32.0)."""
        for cache in self.model_runner.kv_caches:
            cache.zero_()

    def ramet_serve(self, version: int) -> None:
        """Whatever is sampled from now on is of this version."""
        _RECORDER.settle()
        _RECORDER.version = version


def _row(params: SamplingParams, _prompt: list[int] | None, output: list[int]) -> Row:
    """Greedy numbers are those at temperature 1."""
    assert params.extra_args is not None
    return Row(params.extra_args[KEY], params.temperature or 1.0, output)
