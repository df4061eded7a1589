"""Placement of workers, transfer of weights, turns on shared GPUs, `ramet eval` and `ramet check-logprobs` over Ray."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import ray
from ray import cloudpickle
from ray.util import placement_group_table

from ramet.check import logprobs
from ramet.check.agreement import DEFAULTS, Agreement
from ramet.cli import main
from ramet.cluster.interfaces import Backend
from ramet.cluster.launch import open_backend, open_policy
from ramet.cluster.ray import policy, rollout_workers
from ramet.cluster.ray.actor_base import Actor
from ramet.cluster.ray.backend import RayBackend
from ramet.cluster.ray.placement import WorkerPlacement, thread_shares
from ramet.cluster.ray.policy import RayRanks
from ramet.cluster.ray.rollout_workers import RolloutWorkers
from ramet.cluster.ray.rollouts import RayRollouts
from ramet.cluster.ray.weight_transfers import HostTransfer
from ramet.cluster.ray.weights import Bucket, buckets
from ramet.components.toolbox import ToolNames
from ramet.config.compose import compose
from ramet.config.schema import ClusterConfig, ComponentConfig, Config, Dtype, ModelConfig, RolloutConfig, RunConfig
from ramet.engines.config import VllmEngineConfig
from ramet.engines.protocol import EngineInfo
from ramet.errors import ConfigError
from ramet.evaluate.evaluation import run as evaluate
from ramet.evaluate.files import read_results
from ramet.models.loading import load_model
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.types import Group, Rollout, StopReason, Task, user_prompt

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import tests
pytestmark = pytest.mark.usefixtures("two_nodes")


def config(device: str = "cpu", **cluster: Any) -> Config:
    return Config(
        model=ModelConfig(path=".", device=device),
        engine=ComponentConfig(name="stub"),
        cluster=ClusterConfig(name="ray", **{"timeout_s": 300, **cluster}),
        rollout=RolloutConfig(group_size=2, max_concurrent=4),
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny", seed=1)


def tiny_model(folder: Path, seed: int) -> Path:
    """With distributions that are not flat."""
    return make_tiny_model(folder, seed=seed, hidden=64, heads=2, layers=2, intermediate=64, initializer_range=0.1)


def nodes_of(placement: WorkerPlacement) -> list[list[str]]:
    """Of each group the node of every bundle."""
    tables = [placement_group_table(group)["bundles_to_node_id"] for group in placement.groups]
    return [[table[bundle] for bundle in sorted(table)] for table in tables]


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_ranks_are_packed_on_one_node_and_engines_spread_over_both(device):
    """With GPUs each has one of its own; Ray is told of four that do not exist."""
    placement = WorkerPlacement(config(device, policy_workers=2, rollout_workers=2), with_policy=True, is_own=False)
    asyncio.run(placement.reserve(60))
    try:
        ranks, engines = nodes_of(placement)
        assert len(set(ranks)) == 1
        assert len(set(engines)) == 2 or device == "auto", "the ranks' node has no GPU left"
        assert placement.policy_slot(1).gpus == placement.engine_slot(0).gpus == (device == "auto")
    finally:
        placement.release()


@pytest.mark.parametrize(
    ("ranks", "engines", "elsewhere", "expected"),
    [
        ("a" * 8, "a" * 8, 0, [8] * 8),  # on the same GPUs
        ("aaaa", "bbbb", 0, [32] * 4),  # side by side on two nodes
        ("aab", "b", 0, [64, 64, 8]),  # a node of 16 cores
        ("aa", "", 2, [32, 32]),  # the replay of a run with engines
        ("ccc", "ccc", 0, [1, 1, 1]),  # more workers than cores
    ],
)
def test_a_rank_computes_with_its_part_of_the_cores_of_its_node(ranks, engines, elsewhere, expected):
    cores = {"a": 128.0, "b": 16.0, "c": 4.0}
    assert thread_shares(ranks, engines, cores, elsewhere=elsewhere) == expected


def test_ranks_of_a_cluster_count_the_cores_of_its_nodes(monkeypatch, caplog):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    placement = WorkerPlacement(config("auto", policy_workers=1, rollout_workers=1), with_policy=True, is_own=False)
    with caplog.at_level(logging.INFO, logger="ramet"):
        asyncio.run(placement.reserve(60))
    try:
        ranks, engines = nodes_of(placement)
        threads = 1 if ranks == engines else 2
        assert placement.policy_slot(0).threads == threads and placement.engine_slot(0).threads is None
        assert caplog.messages == [
            f"policy ranks compute with {threads} threads each, their part of the cores of their nodes "
            "(run.threads=null)"
        ]
    finally:
        placement.release()


def test_no_room_is_reported_with_what_was_requested_what_there_is_and_what_to_change():
    placement = WorkerPlacement(config("auto", policy_workers=3, rollout_workers=2), with_policy=True, is_own=False)
    try:
        with pytest.raises(ConfigError) as caught:
            asyncio.run(placement.reserve(1.0))
    finally:
        placement.release()
    message = str(caught.value)
    assert "no room for 3 policy and 2 rollout workers: they ask for 5 GPU (the cluster has 4, " in message
    assert (
        "not free within cluster.timeout_s=1. Lower cluster.policy_workers or cluster.rollout_workers, or give the "
        "cluster more nodes" in message  # cluster.colocate=true would be refused with these numbers
    )
    own = WorkerPlacement(config("auto", policy_workers=5), with_policy=True, is_own=True)
    with pytest.raises(ConfigError, match=r"6 GPU .*; it has less in all"):
        asyncio.run(own.reserve(600))


def test_a_replay_reserves_nothing_for_engines_and_ranks_have_the_threads_that_they_are_given(monkeypatch, tmp_path):
    """A cluster of four GPUs has no room for two ranks beside three engines."""
    monkeypatch.setattr(policy, "PolicyActor", StubPolicy)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # the user's would be the ranks' too
    chosen = replace(config("auto", policy_workers=2, rollout_workers=3), run=RunConfig(threads=3))

    async def reserved() -> tuple[list[list[str]], str]:
        spec: Any = None  # the stub builds nothing
        async with open_policy(chosen, spec, folder=tmp_path) as ranks:
            assert await ranks.call(PolicyRank.logprobs, []) == []
            return nodes_of(ranks._pool.placement), await ranks.ranks[1].call(60, StubPolicy.threads)

    nodes, threads = asyncio.run(reserved())
    assert ([len(group) for group in nodes], threads) == ([2], "3")
    five = config("auto", policy_workers=5, rollout_workers=3)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(WorkerPlacement(five, with_policy=True, with_engines=False, is_own=True).reserve(60))
    assert re.fullmatch(
        r"cluster: no room for 5 policy workers: they ask for 5 GPU \(the cluster has 4, \d of them free\), "
        r"\S+ CPU \(the cluster has 4, \S+ of them free\); it has less in all. Lower cluster.policy_workers, or give "
        "the cluster more nodes",
        str(caught.value),
    )


class StubPolicy(Actor):
    def start(self, address: str | None) -> None: ...

    def take_rank(self, rank: int) -> None: ...

    def rest(self) -> None: ...

    def threads(self) -> str:
        import os

        return os.environ["OMP_NUM_THREADS"]

    def rendezvous(self) -> str:
        return "tcp://here"

    def logprobs(self, rows: list[Any]) -> list[Any]:
        return []

    def put_weights(self) -> list[Any]:
        return [ray.put(3)]


class StubEngine(Actor):
    """Logs which methods are called, and which GPUs it sees."""

    async def start(self) -> EngineInfo:
        self._log_call("start")
        return EngineInfo(name="stub", capabilities=frozenset(), vocab_size=7, max_tokens=7)

    async def sleep(self) -> bool:
        self._log_call("sleep")
        return True

    async def wake_weights(self) -> None:
        self._log_call("wake_weights")

    async def wake(self) -> None:
        self._log_call("wake")

    async def update_weights(self, weights: list[Any], version: int) -> int:
        self._log_call("update_weights")
        return version

    async def run_groups(self, request: RolloutRequest) -> list[Group]:
        self._log_call("run_groups")
        return [
            Group(task=task, rollouts=(Rollout(id="0", task=task, segments=(), stop=StopReason.END),))
            for task in request.tasks
        ]

    def _log_call(self, what: str) -> None:
        import os

        logging.getLogger("ramet.stub").info("%s on GPUs %s", what, os.environ.get("CUDA_VISIBLE_DEVICES"))


def test_colocated_engines_see_their_ranks_gpus_and_sleep_while_the_policy_computes(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(policy, "PolicyActor", StubPolicy)
    monkeypatch.setattr(rollout_workers, "RolloutActor", StubEngine)

    @dataclass_with_tensor_parallel
    class Params: ...

    chosen = config("auto", policy_workers=2, rollout_workers=1, colocate=True)
    chosen.engine.params = Params()

    order: list[str] = []
    call, each = RayRanks.call_each, RolloutWorkers._call_each

    async def noting_rest(self: RayRanks, function: Any, *arguments: Any) -> Any:
        if function.__name__ == "rest":
            order.append("policy rests")
        return await call(self, function, *arguments)

    async def noting_each(self: RolloutWorkers, function: Any) -> None:
        order.append(function.__name__)
        await each(self, function)

    monkeypatch.setattr(RayRanks, "call_each", noting_rest)
    monkeypatch.setattr(RolloutWorkers, "_call_each", noting_each)

    async def steps() -> list[str]:
        spec: Any = None  # the stub builds nothing
        backend = await RayBackend.start(chosen, spec, folder=tmp_path, tools=ToolNames())
        try:
            plan, task = RolloutPlan(group_size=1), Task(id="t", prompt=())
            await backend.rollouts.run(RolloutRequest(tasks=[task], step=1, plan=plan))
            await backend.policy.call(PolicyRank.logprobs, [])
            await backend.sync_weights(1)
            await backend.rollouts.run(RolloutRequest(tasks=[task], step=2, plan=plan))
            await backend.policy.call(PolicyRank.logprobs, [])
            # No new weights: those of before come again.
            await backend.rollouts.run(RolloutRequest(tasks=[task], step=3, plan=plan))
            return sorted(device for rank in backend.policy.ranks for device in rank.process.devices)
        finally:
            await backend.close()

    with caplog.at_level(logging.INFO, logger="ramet"):
        devices = asyncio.run(steps())
    logged = [r.message.removeprefix("rollout worker 0: ") for r in caplog.records if "on GPUs" in r.message]
    assert [line.partition(" ")[0] for line in logged] == [
        "start",
        "run_groups",
        "sleep",
        "wake_weights",
        "update_weights",
        "wake",
        "run_groups",
        "sleep",
        "wake_weights",
        "update_weights",
        "wake",
        "run_groups",
    ]
    assert order == ["policy rests", *["policy rests", "wake_weights", "wake"] * 2]  # the first before engines start
    [seen] = {line.partition("GPUs ")[2] for line in logged}
    assert sorted(seen.split(",")) == devices and len(devices) == 2


def dataclass_with_tensor_parallel(cls: type) -> type:
    cls.tensor_parallel = 2
    return cls


KEPT = """
import os
from ramet import function_tool, hookimpl
ramet_contract = "1"

class Kept:
    async def start(self, services):
        self.folder, self.limiter = services.folder, services.limiter("kept", 100)

    async def open(self):
        await self.limiter.wait()
        (self.folder / str(os.getpid())).touch()
        return [function_tool(one) for one in (shout, whisper)]

    async def aclose(self):
        (self.folder / f"{os.getpid()}.closed").touch()

def shout(text: str) -> str:
    "Make it large."
    return text.upper()

def whisper(text: str) -> str:
    "Make it small."
    return text.lower()

@hookimpl
def register_tools(register):
    register("kept", Kept)
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A plugin with a tool set that leaves a file in every process that uses it."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "ramet_kept.py").write_text(KEPT)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setenv("RAMET_PLUGINS", "ramet_kept")
    load_plugins.cache_clear()
    yield
    load_plugins.cache_clear()


@pytest.mark.skipif("arithmetic" not in load_plugins().registries.benchmarks, reason="needs ramet-benchmarks")
def test_an_evaluation_over_ray_gives_the_results_of_one_in_this_process(model, tmp_path, kept):
    common = [
        "tools.two.use=kept",
        f"model.path={model}", f"run.root={tmp_path}", "benchmarks=[arithmetic]", "benchmarks.arithmetic.limit=4",
        "evaluate.k=2", "rollout_step.system_prompt=never", "rollout.max_response_tokens=8",
        "data.max_prompt_tokens=32", "engine.params.slots=8", "rollout.max_concurrent=8",
        "run.deterministic=true", "model.device=cpu",
    ]  # fmt: skip
    results = {}
    for name in ("local", "ray"):
        out = tmp_path / f"{name}.json"
        more = [f"cluster={name}", f"run.name={name}", f"run.out={out}"]
        evaluate(compose([*common, *more], job="eval"))
        [results[name]] = read_results(out)["results"]
    responses = {
        name: {task["prompt"]: [r["response"] for r in task["rollouts"]] for task in found["tasks"]}
        for name, found in results.items()
    }
    assert responses["ray"] == responses["local"] and len(responses["ray"]) == 4
    for name in results:
        left = [file.name for file in (tmp_path / name / "services" / "tools.two").iterdir()]
        assert len(left) == 2 and any(file.endswith(".closed") for file in left), left
        assert (str(os.getpid()) in left) == (name == "local")


@pytest.mark.skipif("format" not in load_plugins().registries.rewards, reason="needs ramet-rewards")
def test_check_logprobs_asks_the_ranks_of_the_run_as_they_train_and_finds_weights_that_engines_do_not_have(
    model, tmp_path, monkeypatch, capsys, caplog
):
    """FSDP2 over two ranks that share every sequence, with prefixes computed once; this process has no rank."""
    monkeypatch.setattr("ramet.cluster.local.PolicyRank", lambda *_, **__: pytest.fail("a rank in this process"))
    after_an_update: list[Agreement] = []

    @asynccontextmanager
    async def open_and_train(config: Config, *given: Any, **options: Any) -> AsyncIterator[Backend]:
        async with open_backend(config, *given, **options) as backend:
            yield backend
            tasks = [Task(id=str(i), prompt=user_prompt(f"What is {i}+{i}?")) for i in range(2)]
            rows, _ = await logprobs.measure(backend, tasks, config, rollouts=4)
            advantages = [np.full(len(row.mask), 1.0, np.float32) * row.mask for row in rows]
            await backend.policy.call(PolicyRank.update, TrainBatch(rows=rows, advantages=advantages), 1)
            after_an_update.append((await logprobs.measure(backend, tasks, config, rollouts=4))[1])

    monkeypatch.setattr(logprobs, "open_backend", open_and_train)
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"What is {i}+{i}?", "answer": str(2 * i)}) + "\n" for i in range(6)))
    with caplog.at_level(logging.INFO, logger="ramet"):
        code = main([
            "check-logprobs", f"model.path={model}", "model.device=cpu", f"data.train=[{data}]",
            f"run.root={tmp_path / 'runs'}", "data.max_prompt_tokens=64", "rollout.max_response_tokens=16",
            "rollout.max_concurrent=16", "rollout_step.system_prompt=never", "train.tasks_per_step=2",
            "rewards=[format]", "run.threads=1", "policy.lr=0.01", "cluster=ray", "cluster.policy_workers=2",
            "policy.sequence_parallel=2", "policy.share_prefixes=always", "policy.activation_checkpointing=true",
            "--tasks", "3", "--rollouts", "3", "--threshold", "1e-4",
        ])  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0 and "of 9 rollouts" in out and "they agree" in out, out
    assert any("against the trainer's 2 ranks (cluster=ray); nothing is written" in line for line in caplog.messages)
    assert not (tmp_path / "runs").exists()
    [stale] = after_an_update
    assert stale.exceeds(DEFAULTS[Dtype.FLOAT32])


def test_a_vllm_engine_in_an_actor_runs_groups_and_takes_weights(model, tmp_path):
    pytest.importorskip("vllm")
    chosen = replace(
        config(rollout_workers=1, timeout_s=300),
        model=ModelConfig(path=str(model), device="cpu"),
        engine=ComponentConfig(name="vllm", params=VllmEngineConfig(slots=4, kv_cache_bytes=64 << 20)),
        rollout=RolloutConfig(group_size=2, max_concurrent=4, max_response_tokens=8),
    )
    chosen.data.max_prompt_tokens = 200
    chosen.rollout_step.name = "tags"
    bucket: list[Bucket] = list(buckets(load_model(chosen.model).state_dict().items()))

    class Puts:
        async def call(self, function: object) -> list[Any]:
            return [ray.put(one) for one in bucket]

    async def work() -> list[Group]:
        started = await RayRollouts.start(chosen, folder=tmp_path, tools=ToolNames())
        try:
            assert started.info.name == "vllm"
            policy: Any = Puts()
            started.workers.transfer = HostTransfer(policy, timeout_s=300)
            await started.workers.update_weights(7)
            return await started.run(
                RolloutRequest(tasks=[Task(id="t", prompt=user_prompt("hello"))], step=0, plan=RolloutPlan())
            )
        finally:
            await started.close()

    [group] = asyncio.run(work())
    assert len(group.valid) == 2
    assert {segment.policy_version for r in group.rollouts for segment in r.segments if segment.is_sampled} == {7}
