"""Exact log-probabilities and entropies of sampled tokens, noted in a worker of vLLM during its steps; without vLLM.

One step's log-softmax is computed at each request's temperature before the step is sampled, and the sampled tokens'
values are taken from it afterwards. No line here waits for the device, since vLLM schedules a step while the previous
one computes. A step's numbers are copied to pinned memory in the order of the device's work. They are read once that
copy has ended, which is before the step's tokens are delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ramet.engines.vllm.logprob_fetcher import SampledNumbers

ROWS = 32  # whose entropies are computed at once
MAX_WAITING = 256  # steps


@dataclass(slots=True)
class SequenceNumbers:
    """Numbers of one request's sampled tokens, in order."""

    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def put(self, position: int, logprob: float, entropy: float, version: int) -> None:
        """Put the numbers at `position`, instead of those sampled after a part of a prompt, which vLLM dropped."""
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
        # By rows, since this memory is not part of the memory that vLLM has measured.
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
        entries = [(self._numbers.get(name) or SequenceNumbers(), count) for name, count in wanted]
        return [(n.logprobs[:count], n.entropies[:count], n.versions[:count]) for n, count in entries]

    def _read_copied(self) -> None:
        """Note the numbers of the steps whose copies have ended: all but those that the device still computes."""
        while self._sampled and self._sampled[0].is_copied():
            step = self._sampled.popleft()
            for (name, position), logprob, entropy in zip(step.tokens, *step.numbers.tolist(), strict=True):
                if position == 0:
                    self._numbers[name] = SequenceNumbers()
                if name in self._numbers:  # otherwise it has ended: a step was scheduled before that was known
                    self._numbers[name].put(position, logprob, entropy, step.version)

    def forget(self, names: Sequence[str]) -> None:
        for name in names:
            self._numbers.pop(name, None)


def on_device(temperatures: Sequence[float], device: torch.device) -> Tensor:
    """`[R]`, on its way to the device."""
    pinned = torch.tensor(temperatures, pin_memory=device.type != "cpu")  # otherwise the copy waits
    return pinned.to(device, non_blocking=True)


def _copied_to_host(numbers: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Return where the numbers will be, in host memory, and the event after which they are there."""
    if numbers.device.type == "cpu":
        return numbers, None
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()
    return host, copied
