"""Code inside vLLM's workers: exact numbers of every sampled token, and the version of the weights it is from.

vLLM's own log-probabilities are from before the temperature or from a cut-off distribution. Its logits processors see
the full distribution of every row before both. So a processor that changes nothing gives one step's distributions to
the `recorder`, and a hook after the sampler gives it the sampled tokens. The engine's process fetches the numbers. vLLM
imports this module in each worker (`worker_extension_cls`), and with it the receiver of new weights becomes known
there.
"""

from __future__ import annotations

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
from ramet.engines.vllm.recorder import BatchedRequest, LogprobRecorder, on_device
from ramet.engines.vllm.weight_transfer import BACKEND, WeightReceiver
from ramet.processes import end_by_parent_alone, end_with_owner

NAME_KEY = "ramet"  # of `SamplingParams.extra_args`: the request's name, as vLLM knows it

WeightTransferEngineFactory.register_engine(BACKEND, WeightReceiver)


_RECORDER = LogprobRecorder()  # a worker is a process, and vLLM makes processor and extension by itself


class LogprobProcessor(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Feeds the recorder of the first worker: under tensor parallelism every worker sees the same logits."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        end_with_owner()  # when their owner is killed, nothing ends vLLM's processes (0.32.0), and they compute on
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
            self._temperatures = on_device(temperatures, self._device)

    def apply(self, logits: Tensor) -> Tensor:
        if self._is_first:
            _RECORDER.measure(logits, self._temperatures, self._requests)
        return logits


class WorkerExtension:
    """Methods that vLLM adds to its workers, called by `collective_rpc`. Only the first worker has numbers."""

    model_runner: Any  # the worker's

    def ramet_record_sampling(self) -> None:
        """Note numbers from now on, in the first worker."""
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
        """Set the version of tokens that are sampled from now on."""
        _RECORDER.version = version


def _note_sampled(_sampler: nn.Module, _inputs: object, output: SamplerOutput) -> None:
    _RECORDER.sampled(output.sampled_token_ids[:, 0])


def _batched_request(params: SamplingParams, _prompt: list[int] | None, output: list[int]) -> BatchedRequest:
    """Greedy numbers are those at temperature 1."""
    assert params.extra_args is not None
    return BatchedRequest(params.extra_args[NAME_KEY], params.temperature or 1.0, output)
