"""Splitting weights into chunks and putting them into shared memory; vLLM is imported, and nothing is started."""

from __future__ import annotations

import asyncio
import os
import signal
from importlib.util import find_spec
from multiprocessing import resource_tracker
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ramet.errors import InfraError

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)")


def weights() -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "embed": ((300, 7), torch.bfloat16),
        "norm": ((7,), torch.float32),
        "scalar": ((), torch.float32),
        "head": ((7, 300), torch.float32),
    }
    return [(name, torch.randn(shape, generator=generator).to(dtype)) for name, (shape, dtype) in shapes.items()]


@pytest.mark.parametrize(("limit", "count"), [(1, 4), (2000, 3), (10**6, 1)])
def test_every_tensor_arrives_however_weights_are_split(limit: int, count: int) -> None:
    from ramet.engines.vllm import weight_transfer

    sent = weights()
    arrived, segments = [], []
    for info in weight_transfer.chunks(sent, limit):
        assert info["by"] == "host"
        segments.append(info["told"]["segment"])
        arrived += weight_transfer._copies(info["told"], torch.device("cpu"))
    assert len(segments) == count
    for (name, tensor), (wanted, original) in zip(arrived, sent, strict=True):
        assert name == wanted and tensor.dtype == original.dtype and torch.equal(tensor, original)
    assert not [segment for segment in segments if (weight_transfer.SHARED / segment).exists()]


def test_an_engine_that_is_killed_while_it_reads_leaves_the_chunk_to_the_sender_and_to_others() -> None:
    from ramet.engines.vllm import weight_transfer

    stream = weight_transfer.chunks(weights(), 2000)
    told = next(stream)["told"]
    read, write = os.pipe()
    if not (child := os.fork()):  # another process, with a tracker of its own for what it opens
        resource_tracker._resource_tracker._fd = resource_tracker._resource_tracker._pid = None  # type: ignore[attr-defined]
        copied = weight_transfer._copies(told, torch.device("cpu"))
        os.write(write, f"{len(copied)} {resource_tracker._resource_tracker._pid}".encode())  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    found, tracker = os.read(read, 100).decode().split()
    assert (found, tracker) == ("1", "None")  # a tracker would delete what the dead process had opened
    assert weight_transfer._copies(told, torch.device("cpu"))
    assert len(list(stream)) == 2


def test_a_full_shared_memory_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from ramet.engines.vllm import weight_transfer

    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(weight_transfer.shutil, "disk_usage", lambda path: Usage(7))
    with pytest.raises(
        InfraError, match=r"needs [\d,]+ bytes of shared memory, and .* has 7 left; enlarge it .*shm-size"
    ):
        next(weight_transfer.chunks(weights()))


class Reports:
    """An engine that takes whatever it is sent and serves one version whatever it is told."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.calls: list[str] = []

    async def update_weights(self, request: object) -> None:
        self.calls.append("update")

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.calls.append(f"finish {weight_version}")

    async def get_weight_version(self) -> str:
        return self.version


def test_another_version_than_the_pushed_one_is_refused() -> None:
    from ramet.engines.vllm import weight_transfer

    async def update(llm: Any) -> None:
        for info in weight_transfer.chunks(weights(), 2000):
            await weight_transfer.receive_chunk(llm, info)
        await weight_transfer.finish_update(llm, 5)

    good = Reports("5")
    asyncio.run(update(good))
    assert good.calls == ["update", "update", "update", "finish 5"]
    with pytest.raises(InfraError, match="reports weight version 'default' after an update to 5"):
        asyncio.run(update(Reports("default")))
