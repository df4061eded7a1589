"""Exact log-probabilities and entropies, read off the logits where vLLM samples.

vLLM's own log-probabilities are those before the temperature or those of a cut-off distribution; its logits processors
see the whole distribution of every row before both. The probe changes nothing: it keeps one step's log-softmax at each
request's temperature, until the tokens of this step are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

KEY = "ramet"  # of `SamplingParams.extra_args`: the request's name here


class Probe:
    """The numbers of one step. R rows, V tokens of the vocabulary."""

    def __init__(self) -> None:
        self._logps = torch.empty(0)  # [R, V]
        self._entropies = torch.empty(0)  # [R]
        self._rows: dict[str, int] = {}

    def keep(self, logits: Tensor, temperatures: Tensor, rows: dict[str, int]) -> None:
        """Measure the logits `[R, V]` of a step; row `rows[name]` is the request `name`'s."""
        self._logps = torch.empty(0)  # gone before another as large is made
        self._logps = torch.log_softmax(logits / temperatures[:, None], dim=-1)
        self._entropies = -(self._logps.exp().mul_(self._logps)).sum(dim=-1)
        self._rows = rows

    def take(self, names: Sequence[str], tokens: Sequence[int]) -> tuple[list[float], list[float]]:
        """Log-probabilities of the tokens that these requests sampled in the step, and the entropies."""
        device = self._logps.device
        rows = torch.tensor([self._rows[name] for name in names], device=device)
        chosen = self._logps[rows, torch.tensor(tokens, device=device)]
        return chosen.tolist(), self._entropies[rows].tolist()


def processor(probe: Probe) -> type[LogitsProcessor]:
    """A class for vLLM to instantiate, as often as it likes, whose objects all feed this probe."""

    class Watch(LogitsProcessor):  # type: ignore[misc, unused-ignore]
        def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
            self._device = device
            self._requests: dict[int, tuple[str, float]] = {}  # row -> name and temperature
            self._rows: dict[str, int] = {}
            self._temperatures = torch.empty(0)

        def is_argmax_invariant(self) -> bool:
            return False  # it is, but then greedy requests would pass by

        def update_state(self, batch_update: BatchUpdate | None) -> None:
            if process_dict_updates(self._requests, batch_update, _request):
                self._rows = {name: row for row, (name, _) in self._requests.items()}
                ordered = [self._requests[row][1] for row in range(len(self._requests))]
                self._temperatures = torch.tensor(ordered, device=self._device)

        def apply(self, logits: Tensor) -> Tensor:
            probe.keep(logits, self._temperatures, self._rows)
            return logits

    return Watch


def _request(params: SamplingParams, _prompt: list[int] | None, _output: list[int]) -> tuple[str, float]:
    """Name and temperature; greedy numbers are those at temperature 1."""
    assert params.extra_args is not None
    return params.extra_args[KEY], params.temperature or 1.0
