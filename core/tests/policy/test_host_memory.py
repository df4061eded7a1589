"""Copies in host memory. Memory can be pinned only where CUDA is, so the order of calls is tested with a stand-in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from ramet.policy import host_memory
from ramet.policy.host_memory import CHUNK, Chunks, HostBuffers, chunks, gpus_of, own_part, pinned_bytes

KB = 2**10


@pytest.mark.parametrize(
    ("sizes", "places", "ends"),
    [
        ([], (), ()),
        ([0, 4, 100], ((0, 0), (0, 0), (0, 64)), (192,)),
        ([CHUNK - 64, 64, 1], ((0, 0), (0, CHUNK - 64), (1, 0)), (CHUNK, 64)),
        ([4, 3 * CHUNK, 4], ((0, 0), (1, 0), (2, 0)), (64, 3 * CHUNK, 64)),
    ],
)
def test_tensors_share_chunks_and_a_larger_one_has_its_own(
    sizes: list[int], places: tuple[tuple[int, int], ...], ends: tuple[int, ...]
) -> None:
    assert chunks(sizes) == Chunks(places, ends)


def test_a_pinned_block_takes_a_power_of_two() -> None:
    assert pinned_bytes([0, 1, 4 * KB, 4 * KB + 1, CHUNK]) == 1 + 4 * KB + 8 * KB + CHUNK


@pytest.fixture
def sharded() -> Iterator[Callable[[Tensor], Tensor]]:
    """Makes a tensor this rank's half of one that two ranks share."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    mesh = init_device_mesh("cpu", (2,))
    yield lambda part: DTensor.from_local(part, mesh, [Shard(0)])
    dist.destroy_process_group()


def addresses(tensors: dict[str, Tensor]) -> list[int]:
    return [own_part(tensor).data_ptr() for tensor in tensors.values()]


def test_copies_are_equal_sharded_alike_and_in_the_same_memory_every_time(
    sharded: Callable[[Tensor], Tensor],
) -> None:
    own = torch.arange(6.0).view(3, 2)
    tensors = {"half": sharded(own), "whole": torch.ones(2, 2).t(), "count": torch.tensor(3), "none": torch.zeros(0)}
    buffers = HostBuffers(pin=False)
    first = buffers.copies(tensors)
    before = addresses(first)
    assert isinstance(first["half"], DTensor) and first["half"].placements == (Shard(0),)
    assert first["half"].shape == (6, 2) and torch.equal(own_part(first["half"]), own)
    assert before[1:3] == [before[0] + 64, before[0] + 128] and own.data_ptr() not in before  # one chunk, own memory
    own += 1
    assert torch.equal(own_part(first["half"]), own - 1)
    assert addresses(buffers.copies(tensors)) == before
    assert torch.equal(own_part(first["half"]), own) and first["count"] == 3


def test_memory_that_fits_no_more_is_replaced() -> None:
    buffers = HostBuffers(pin=False)
    (kept, replaced) = buffers.copies({"a": torch.ones(2), "b": torch.ones(2)}).values()
    found = buffers.copies({"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.ones(1, dtype=torch.int32)})
    assert found["a"] is kept and found["b"] is not replaced and found["b"].tolist() == [0, 0, 0]
    assert found["c"].dtype is torch.int32 and replaced.tolist() == [1, 1]


def test_into_pinned_memory_all_tensors_are_copied_before_the_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    empty, copy = torch.empty, Tensor.copy_

    def allocate(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        calls.append(f"allocate, pinned {pin_memory}")
        return empty(*args, **kwargs)

    def copying(self: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        calls.append(f"copy, waits {not non_blocking}")
        return copy(self, source)

    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(Tensor, "copy_", copying)
    monkeypatch.setattr(
        host_memory, "gpus_of", lambda tensors: {torch.device("cuda:1")} if len(tensors) == 2 else set()
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append(f"wait for {device}"))
    buffers, tensors = HostBuffers(pin=True), {"a": torch.ones(3), "b": torch.ones(4)}
    copied = ["copy, waits False", "copy, waits False", "wait for cuda:1"]
    buffers.copies(tensors)
    assert calls == ["allocate, pinned True", *copied]
    calls.clear()
    buffers.copies(tensors)
    assert calls == copied


def test_copies_wait_for_the_gpu_that_holds_the_tensors_not_for_the_current_one() -> None:
    with FakeTensorMode():  # tensors without memory, which need no GPU
        tensors = [torch.empty(2, device="cuda:1"), torch.empty(2), torch.empty(3, device="cuda:1")]
    assert gpus_of(tensors) == {torch.device("cuda:1")}
