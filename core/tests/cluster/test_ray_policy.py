"""What the driver gives to all policy ranks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.cluster.launch import open_policy
from ramet.cluster.ray import actor_base, policy
from ramet.cluster.ray.actor_base import ActorProcess, interface_of, use_node_interface
from ramet.config.schema import ClusterConfig, Config, ModelConfig, PolicyConfig, TrainConfig
from ramet.models.tiny import make_tiny_model
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.checkpoint import store
from ramet.policy.checkpoint.store import Checkpoint, Checkpoints, verify
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec


def test_rows_and_batch_of_a_step_are_put_into_the_object_store_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[Any] = []
    calls: list[tuple[Any, ...]] = []

    class Worker:
        async def call(self, timeout_s: float, function: Any, *arguments: Any) -> Any:
            calls.append((function.__name__, *arguments))

    async def learn(rows: Sequence[Row], batch: TrainBatch) -> None:
        ranks = policy.RayRanks(pool, spec, None)
        ranks.ranks = [cast(Any, Worker())]
        for function in (PolicyRank.logprobs, PolicyRank.reference_logprobs, PolicyRank.values):
            await ranks.call(function, rows)
        await ranks.call(PolicyRank.update_critic, batch, 1)
        await ranks.call(PolicyRank.update, batch, 1)

    async def unless_failed(work: Any, *, policy: bool) -> Any:
        return await work

    pool: Any = SimpleNamespace(timeout_s=1.0, unless_failed=unless_failed)
    spec: Any = None
    rows: Any = [object(), object()]
    batch = TrainBatch(rows=rows, advantages=[np.zeros(1, np.float32)] * 2)
    monkeypatch.setattr(policy.ray, "put", lambda value: stored.append(value) or f"ref {len(stored)}")
    asyncio.run(learn(rows, batch))
    assert stored == [rows, batch] and stored[0] is rows
    assert calls == [
        ("logprobs", "ref 1"),
        ("reference_logprobs", "ref 1"),
        ("values", "ref 1"),
        ("update_critic", "ref 2", 1),
        ("update", "ref 2", 1),
    ]


@pytest.mark.parametrize("replicas", [1, 2])
def test_ranks_are_numbered_by_node_and_gpu_whatever_order_ray_has_started_them_in(
    replicas: int, caplog: pytest.LogCaptureFixture
) -> None:
    places = [("10.0.0.2", "1"), ("10.0.0.1", "10"), ("10.0.0.2", "0"), ("10.0.0.1", "9")]
    told: dict[str, list[Any]] = {}

    class Worker:
        def __init__(self, slot: int) -> None:
            self.name, self.slot = f"policy rank {slot}", slot
            node, device = places[slot]
            self.process = ActorProcess(node=node, pid=1, devices=(device,))

        async def wait_started(self, timeout_s: float) -> None: ...

        async def call(self, timeout_s: float, function: Any, *arguments: Any) -> Any:
            told.setdefault(function.__name__, []).append((self.slot, *arguments))
            return "tcp://here:1"

    class Pool:
        timeout_s = 1.0
        config = Config(cluster=ClusterConfig(policy_workers=4), policy=PolicyConfig(replicas=replicas))
        placement = SimpleNamespace(
            policy_slot=lambda slot: slot, shared_slots=lambda engine: range(2 * engine, 2 * engine + 2)
        )

        def start(self, actor: object, name: str, slot: int, setup: object, on_lost: object) -> Worker:
            return Worker(slot)

        async def unless_failed(self, work: Any, *, policy: bool) -> Any:
            return await work

    async def open_all() -> policy.RayRanks:
        pool, spec = cast(Any, Pool()), cast(Any, None)
        ranks = policy.RayRanks(pool, spec, None)
        await ranks.open()
        return ranks

    ranks = asyncio.run(open_all())
    assert [cast(Any, worker).slot for worker in ranks.ranks] == [3, 1, 2, 0]  # 10.0.0.1: 9, 10; 10.0.0.2: 0, 1
    assert sorted(told["take_rank"]) == [(0, 3), (1, 1), (2, 2), (3, 0)]
    assert told["rendezvous"] == [(3,)] and [worker.name for worker in ranks.ranks][3] == "policy rank 3"
    assert ranks.ranks_beside(0) == [3, 1] and ranks.ranks_beside(1) == [2, 0]
    spanning = (
        "policy.replicas=1: the 4 policy ranks that share a copy of the weights are on several nodes, so every block "
        "is gathered over the network in each pass; policy.replicas=2 keeps that inside nodes, where memory suffices"
    )
    assert caplog.messages == ([spanning] if replicas == 1 else [])


def test_gloo_and_nccl_use_the_interface_of_the_nodes_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    assert interface_of("127.0.0.1") == "lo" and interface_of("192.0.2.1") is None
    monkeypatch.setattr(actor_base, "node_address", lambda: "10.0.0.1")
    monkeypatch.setattr(actor_base, "interface_of", lambda address: "eth1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
    use_node_interface()
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ.pop("NCCL_SOCKET_IFNAME")) == ("mine", "=eth1")
    monkeypatch.setattr(actor_base, "interface_of", lambda address: "lo")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    use_node_interface()
    assert os.environ.pop("GLOO_SOCKET_IFNAME") == "lo" and "NCCL_SOCKET_IFNAME" not in os.environ


def test_ranks_read_their_own_files_of_a_checkpoint_and_a_damaged_one_is_skipped_by_all(
    two_nodes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two ranks, each on a node. The driver reads only what no rank has written."""
    model = ModelConfig(path=str(make_tiny_model(tmp_path / "tiny", hidden=32, layers=1, heads=2, intermediate=64)))
    chosen = Config(model=model, cluster=ClusterConfig(name="ray", policy_workers=2, timeout_s=300))
    spec = PolicySpec(
        model=model, train=TrainConfig(), policy=PolicyConfig(), policy_loss=PpoClip(PpoClipConfig()), temperature=1.0,
        max_response_tokens=8, total_steps=2, seed=1,
    )  # fmt: skip
    digest, hashed = store._sha256, list[str]()
    monkeypatch.setattr(store, "_sha256", lambda path: hashed.append(path.name) or digest(path))

    async def saved_and_found() -> Checkpoint | None:
        async with open_policy(chosen, spec, folder=tmp_path) as ranks:
            checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2, verify_with=ranks.verify)
            for step in (1, 2):
                await ranks.call(PolicyRank.stage, True)
                await asyncio.to_thread(checkpoints.save, step, ranks.write_staged)
            for name in ("rank_00001.pt", "__1_0.distcp"):
                file = tmp_path / "checkpoints/step_000002" / name
                file.write_bytes(file.read_bytes()[:-1] + b"?")
            hashed.clear()
            return await asyncio.to_thread(checkpoints.newest)

    found = asyncio.run(saved_and_found())
    assert found is not None and found.step == 1
    assert hashed == [".metadata", ".metadata"]
    [skipped] = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert skipped == "checkpoint step_000002 skipped: " + "; ".join(verify(tmp_path / "checkpoints/step_000002"))
    assert skipped.count("does not match") == 2
