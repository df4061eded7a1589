"""The vLLM engine over two workers, each with a half of the model: the same numbers, and the faults of processes.

It takes four processes and their imports, so one engine serves all tests, and the last ones break and end it. On a busy
machine the workers wait for each other most of the time.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_checks import check_logprobs_match, check_seeds
from engine_subject import EngineUnderTest, expect_reference, run
from engine_updates import changed_copy, check_update_in_flight, check_weight_update
from transformers import PreTrainedModel

from ramet.cluster.ray import actors
from ramet.cluster.ray.actors import PolicyActor, RolloutActor
from ramet.cluster.ray.weight_transfers import Target, choose
from ramet.cluster.ray.worker import Timeout
from ramet.config.schema import ClusterConfig, ComponentConfig, Config, ModelConfig
from ramet.engines.config import VllmEngineConfig
from ramet.engines.protocol import Sampling
from ramet.engines.vllm import VllmEngine
from ramet.errors import ConfigError, InfraError
from ramet.models.encoder import Encoder
from ramet.models.tiny import make_tokenizer, tiny_model
from ramet.policy.batching.partition import RankLayout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)"),
]

ENCODER = Encoder(make_tokenizer())
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model(
        "qwen2",
        vocabulary=288,
        hidden=128,
        intermediate=160,
        layers=2,
        heads=4,
        kv_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=True,
    ).eval()


@pytest.fixture(scope="module")
def saved(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return ModelConfig(path=str(folder), device="cpu")


def start(config: ModelConfig, *, tensor_parallel: int) -> VllmEngine:
    params = VllmEngineConfig(slots=8, kv_cache_bytes=16 * 2**20, tensor_parallel=tensor_parallel, seeds=True)
    return VllmEngine(params, model=config, encoder=ENCODER, max_tokens=160)


@pytest.fixture(scope="module")
def engine(saved: ModelConfig) -> Iterator[VllmEngine]:
    """Its workers have stand-ins for the primitives of CUDA and NCCL."""
    before = {path.name for path in SHARED_MEMORY.iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)  # also of vLLM's processes
        patch.setattr("ramet.engines.vllm.launch.WorkerExtension", import_module("without_cuda").Extension)
        engine = start(saved, tensor_parallel=2)
    yield engine
    asyncio.run(engine.close())
    forget_shared_memory(before)


def forget_shared_memory(before: set[str]) -> None:
    """vLLM 0.32.0 leaves what its CPU workers talk through."""
    for path in SHARED_MEMORY.iterdir():
        if path.name not in before and path.name.startswith("vllm_dist_"):
            path.unlink()


def vllm_processes(parent: int) -> list[int]:
    psutil = pytest.importorskip("psutil")
    below = psutil.Process(parent).children(recursive=True)
    return [one.pid for one in below if one.name().startswith("VLLM")]


class Lent:
    """The shared engine, for one check: closing it puts it back as it was."""

    def __init__(self, engine: VllmEngine, model: PreTrainedModel) -> None:
        self.engine = engine
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def started(self, *, in_flight: bool = False, **_: Any) -> Any:
        self.engine.in_flight = in_flight
        return self

    async def close(self) -> None:
        self.engine.in_flight = False
        await self.engine.update_weights(self.model.state_dict().items(), 0)
        self.engine.metrics()


@pytest.fixture
def subject(engine: VllmEngine, model: PreTrainedModel) -> EngineUnderTest:
    lent: Any = Lent(engine, model)
    return EngineUnderTest(make=lent.started, model=model, encoder=ENCODER, block=32)


@pytest.mark.parametrize(
    "check",
    [check_logprobs_match, check_seeds, check_weight_update, check_update_in_flight],
    ids=lambda check: check.__name__,
)
def test_half_a_model_each_gives_the_same_numbers(
    check: Callable[[EngineUnderTest], None], subject: EngineUnderTest
) -> None:
    check(subject)


class Ranks:
    """Two policy ranks on two GPUs that do not exist, with this model: the actors' own methods, without Ray."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.updates = 0
        state = model.state_dict()
        shapes = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()]
        self._actors = [PolicyActor.__new__(PolicyActor) for _ in range(2)]
        for rank, actor in enumerate(self._actors):
            actor.rank = rank
            actor.layout = RankLayout(rank=rank, world_size=2, replicas=1)
            actor.spec = SimpleNamespace(model=ModelConfig(path="m", device=f"cuda:{rank}"))
            actor.engine_shapes = lambda: shapes
            actor.engine_weights = lambda: iter(state.items())

    def ranks_beside(self, engine: int) -> list[int]:
        return [0, 1]

    async def call_each(self, function: Any, *arguments: Any) -> list[Any]:
        if function is PolicyActor.rest:
            return []
        return await asyncio.gather(*(asyncio.to_thread(function, actor, *arguments) for actor in self._actors))

    async def call(self, function: Any, *arguments: Any) -> Any:
        return next(iter(await self.call_each(function, *arguments)), None)

    async def rendezvous(self) -> str:
        return self._actors[0].rendezvous()


class EngineActor:
    """The actor of an engine, without Ray: its own methods."""

    def __init__(self, engine: VllmEngine) -> None:
        self._actor = RolloutActor.__new__(RolloutActor)
        update = engine.update_weights
        self._actor.rollouts = SimpleNamespace(engine=engine, expect=lambda version: None, update_weights=update)

    async def call(self, timeout: Timeout | float, function: Callable[..., Any], *arguments: Any) -> Any:
        return await function(self._actor, *arguments)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every transfer takes several, and each has its own part of the model."""
    for module in ("ray.weight_senders", "ray.weight_transfers", "ray.weights"):
        monkeypatch.setattr(f"ramet.cluster.{module}.CHUNK_BYTES", 300_000)


@pytest.mark.parametrize("transfer", ["ipc", "nccl", "host"])
def test_weights_come_from_the_ranks_to_the_loaded_model_by_each_transfer(
    transfer: str, subject: EngineUnderTest, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    """From the policy's actors over the transfer that a run takes, vLLM's AsyncLLM and its workers' own receivers to a
    turn by the new weights; what is not real is in `without_cuda`.
    """
    monkeypatch.syspath_prepend(Path(__file__).parent)
    without_cuda = import_module("without_cuda")
    without_cuda.stand_in(monkeypatch.setattr)
    monkeypatch.setattr(torch, "empty", without_cuda.empty)
    monkeypatch.setattr(actors, "resolve_device", lambda model: torch.device(model.device))
    monkeypatch.setattr(actors.ray, "put", as_future)
    changed = changed_copy(subject.model)
    colocate = transfer == "ipc"
    config = Config(
        engine=ComponentConfig(name="vllm", params=VllmEngineConfig(transfer=transfer, tensor_parallel=2)),
        cluster=ClusterConfig(name="ray", colocate=colocate, policy_workers=2, timeout_s=60),
    )

    async def use(engine: Any) -> None:
        ranks: Any = Ranks(changed)
        worker: Any = EngineActor(engine.engine)
        chosen = choose(config, ranks, cuda=True)
        old = await engine.generate(subject.request("old"))
        for version in (5, 6):  # a second time over what the first has opened
            if colocate:
                await engine.sleep()
                await engine.wake_weights()
            await chosen.prepare()
            await chosen.send([Target(worker=worker, number=0)], version, lambda lost, error: pytest.fail(str(error)))
            if colocate:
                await engine.wake()
            new = await engine.generate(subject.request(f"new {version}"))
            assert set(new.policy_versions) == {version}
            expect_reference(subject, changed, subject.request("new"), new)
        expect_reference(subject, subject.model, subject.request("old"), old)

    try:
        run(subject, use)
    finally:
        for path in SHARED_MEMORY.glob(f"{without_cuda.PREFIX}*"):
            path.unlink()


def as_future(value: object) -> asyncio.Future[object]:
    """In the place of a reference to the object store."""

    async def given() -> object:
        return value

    return given()


def test_heads_that_cannot_be_split_are_refused_before_a_process_starts(saved: ModelConfig) -> None:
    wanted = r"(?s)vLLM cannot start with the model in .*divisible by tensor parallel size \(3\)"
    with pytest.raises(ConfigError, match=wanted):
        start(saved, tensor_parallel=3)


def test_a_sigterm_for_all_processes_of_a_run_is_left_to_its_main_process(
    engine: VllmEngine, subject: EngineUnderTest
) -> None:
    pids = vllm_processes(os.getpid())
    assert len(pids) == 3  # scheduler and two workers
    for _ in range(2):  # this process is their parent, which may end them, so another one sends it
        subprocess.run(["kill", "-TERM", *map(str, pids)], check=True)
        run(subject, lambda engine: engine.generate(subject.request("after it")))
    assert vllm_processes(os.getpid()) == pids


SERVES = """
import sys, time
from ramet.config.schema import ModelConfig
from ramet.engines.config import VllmEngineConfig
from ramet.engines.vllm import VllmEngine
from ramet.models.encoder import Encoder
from ramet.models.tiny import make_tokenizer

if __name__ == "__main__":
    params = VllmEngineConfig(slots=8, kv_cache_bytes=16 * 2**20, tensor_parallel=2)
    model = ModelConfig(path=sys.argv[1], device="cpu")
    engine = VllmEngine(params, model=model, encoder=Encoder(make_tokenizer()), max_tokens=160)
    print("ready", flush=True)
    time.sleep(600)
"""


def test_no_process_of_vllm_outlives_a_killed_run(saved: ModelConfig, tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    (tmp_path / "serves.py").write_text(SERVES)
    before = {path.name for path in SHARED_MEMORY.iterdir()}
    command = [sys.executable, str(tmp_path / "serves.py"), saved.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout is not None and "ready\n" in owner.stdout
        left = psutil.Process(owner.pid).children(recursive=True)
        assert len([one for one in left if one.name().startswith("VLLM")]) == 3
        owner.kill()
    _, alive = psutil.wait_procs(left, timeout=20)
    forget_shared_memory(before)
    assert not alive


def test_a_killed_worker_fails_running_requests_and_whatever_comes(
    engine: VllmEngine, subject: EngineUnderTest
) -> None:
    psutil = pytest.importorskip("psutil")
    weights = subject.model.state_dict()

    async def use() -> None:
        begun = asyncio.Event()
        long = replace(subject.request("long", sampling=Sampling(max_tokens=140)), first_tokens=2)
        running = asyncio.create_task(engine.generate(long, lambda report: begun.set()))
        await begun.wait()
        workers = [one for one in psutil.Process().children(recursive=True) if "Worker" in one.name()]
        assert len(workers) == 2
        workers[1].kill()
        for job in (running, engine.generate(subject.request("late")), engine.update_weights(weights.items(), 1)):
            with pytest.raises(InfraError, match="the vllm engine failed: "):
                await asyncio.wait_for(job, timeout=60)

    asyncio.run(use())
    assert engine.policy_version == 0


def test_closing_leaves_no_process_behind(engine: VllmEngine) -> None:
    psutil = pytest.importorskip("psutil")
    asyncio.run(engine.close())
    assert not [one for one in psutil.Process().children(recursive=True) if one.name().startswith("VLLM")]
