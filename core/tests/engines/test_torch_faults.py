"""What goes wrong in the torch engine is reported to whom it concerns, and to nobody else."""

from __future__ import annotations

import asyncio
import copy
import logging
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_subject import EngineUnderTest, expect_reference, run
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ramet.engines.config import TorchEngineConfig
from ramet.engines.protocol import Capability, Completion, Sampling
from ramet.engines.torch import TorchEngine, engine_thread
from ramet.engines.torch.engine import _check_rows_agree
from ramet.engines.torch.forward import Forward
from ramet.errors import ConfigError, InfraError
from ramet.models.encoder import Encoder

MakeSubject = Callable[..., EngineUnderTest]


def build(model: PreTrainedModel, encoder: Encoder, **options: Any) -> TorchEngine:
    config = TorchEngineConfig(slots=options.pop("slots", 4))
    return TorchEngine(config, model=model, encoder=encoder, **{"max_tokens": 64, **options})


def test_a_request_with_logits_that_are_not_finite_fails_alone(make_subject: MakeSubject) -> None:
    subject = make_subject(tie=False)
    poison = 200
    weights = copy.deepcopy(subject.model.state_dict())
    weights["model.embed_tokens.weight"][poison] = float("nan")

    async def use(engine: TorchEngine) -> list[Completion | BaseException]:
        await engine.update_weights(weights.items(), 1)
        greedy = Sampling(max_tokens=6, temperature=0.0)
        good = [subject.request(f"g{i}", "ordinary text", sampling=greedy) for i in range(3)]
        bad = replace(good[0], id="bad", token_ids=array("i", [*good[0].token_ids, poison]))
        found = await asyncio.gather(*(engine.generate(r) for r in (*good, bad)), return_exceptions=True)
        assert isinstance(found.pop(), InfraError)
        later = [replace(request, id=f"later {request.id}") for request in good]
        return [*found, *await asyncio.gather(*(engine.generate(r) for r in later), return_exceptions=True)]

    for completion in run(subject, use, slots=4):
        assert isinstance(completion, Completion)


def test_weights_that_are_not_finite_leave_nothing_behind(make_subject: MakeSubject) -> None:
    subject = make_subject()
    broken = {name: torch.full_like(t, float("nan")) for name, t in subject.model.state_dict().items()}

    async def use(engine: TorchEngine) -> None:
        request = subject.request("r")
        await engine.update_weights(broken.items(), 1)
        with pytest.raises(InfraError, match="not finite"):
            await engine.generate(request)
        await engine.update_weights(subject.model.state_dict().items(), 2)
        expect_reference(subject, subject.model, request, await engine.generate(request))

    run(subject, use)
    run(subject, use, deterministic=True)


def test_an_exception_in_the_compute_thread_fails_all_requests(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    subject = make_subject()

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    async def use(engine: TorchEngine) -> None:
        monkeypatch.setattr(Forward, "decode", broken)
        requests = [subject.request(f"r{i}") for i in range(6)]
        found = await asyncio.gather(*(engine.generate(r) for r in requests), return_exceptions=True)
        found += await asyncio.gather(engine.generate(requests[0]), return_exceptions=True)
        found += await asyncio.gather(engine.update_weights([], 1), return_exceptions=True)
        assert len(found) == 8 and engine.failure == "the torch engine failed: RuntimeError: out of memory"
        for error in found:
            assert isinstance(error, InfraError) and "out of memory" in str(error)
            assert isinstance(error.__cause__, RuntimeError)

    with caplog.at_level(logging.ERROR):
        run(subject, use, slots=4)
    assert len([r for r in caplog.records if "the torch engine failed" in r.message]) == 1


def test_an_error_of_the_callers_own_callback_reaches_the_caller(make_subject: MakeSubject) -> None:
    subject = make_subject()

    def callback(_: object) -> None:
        raise KeyError("mine")

    async def use(engine: TorchEngine) -> None:
        with pytest.raises(KeyError, match="mine"):
            await engine.generate(subject.request("r"), callback)
        assert len((await engine.generate(subject.request("r"))).token_ids) == 12

    run(subject, use)


def test_an_update_is_done_when_the_last_request_before_it_ends_though_nothing_follows(
    make_subject: MakeSubject,
) -> None:
    subject = make_subject()

    async def use(engine: TorchEngine) -> None:
        job = asyncio.create_task(engine.generate(subject.request("r")))
        await asyncio.sleep(0)
        await asyncio.wait_for(engine.update_weights(subject.model.state_dict().items(), 1), timeout=30)
        assert set((await job).policy_versions) == {0}

    run(subject, use)


def test_a_deterministic_request_waits_until_a_key_is_released(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    subject = make_subject()
    monkeypatch.setattr(engine_thread, "STALL_S", 0.05)

    async def use(engine: TorchEngine) -> None:
        held = [replace(subject.request(f"k{i}"), cache_key=f"k{i}") for i in range(4)]
        await asyncio.gather(*(engine.generate(r) for r in held))
        waiting = asyncio.create_task(engine.generate(replace(held[0], id="more", cache_key="more")))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await engine.generate(replace(held[0], id="next"))
        assert not waiting.done()
        engine.release(["k2"])
        assert len((await waiting).token_ids) == 12

    run(subject, use, slots=4, deterministic=True)
    assert "wait for a cache slot" in caplog.text


def test_a_deterministic_fork_of_a_released_parent_is_refused(make_subject: MakeSubject) -> None:
    subject = make_subject()

    async def use(engine: TorchEngine) -> None:
        parent = replace(subject.request("parent"), cache_key="parent")
        await engine.generate(parent)
        engine.release(["parent"])
        with pytest.raises(ValueError, match="'parent', whose cache is not held"):
            await engine.generate(replace(parent, id="fork", cache_key="fork", fork_of="parent"))

    run(subject, use, deterministic=True)


def test_asyncio_goes_on_while_the_engine_computes(make_subject: MakeSubject) -> None:
    subject = make_subject()

    async def use(engine: TorchEngine) -> int:
        ticks = 0
        job = asyncio.create_task(engine.generate(subject.request("r", "a", sampling=Sampling(max_tokens=150))))
        while not job.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return ticks

    assert run(subject, use) > 5


def test_capabilities_are_what_the_instance_does(make_model: Callable[..., Any], encoder: Encoder) -> None:
    async def inside() -> None:
        for deterministic in (False, True):
            engine = build(make_model("qwen2"), encoder, deterministic=deterministic)
            assert (Capability.DETERMINISTIC in engine.info.capabilities) is deterministic
            assert engine.info.max_tokens == 64 and engine.info.vocab_size == 288
            await engine.close()

    asyncio.run(inside())


def test_other_architectures_are_refused_with_the_list_of_allowed_ones(encoder: Encoder) -> None:
    config = AutoConfig.for_model("gpt2", vocab_size=64, n_embd=16, n_layer=1, n_head=2)
    with pytest.raises(ConfigError, match="'gpt2'; allowed: llama, qwen2, qwen3"):
        build(AutoModelForCausalLM.from_config(config), encoder)


def test_a_sliding_window_shorter_than_the_limit_is_refused(make_model: Callable[..., Any], encoder: Encoder) -> None:
    model = copy.deepcopy(make_model("qwen2"))
    model.config.layer_types, model.config.sliding_window = ["full_attention", "sliding_attention"], 32
    with pytest.raises(ConfigError, match="sliding window of 32"):
        build(model, encoder)


def test_rotary_embeddings_that_depend_on_the_length_are_refused(
    make_model: Callable[..., Any], encoder: Encoder
) -> None:
    model = copy.deepcopy(make_model("llama"))
    model.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(ConfigError, match="'dynamic'; allowed: default, linear, llama3, yarn"):
        build(model, encoder)


def test_the_probe_notices_rows_that_depend_on_their_place(
    make_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Forward(make_model("llama"), slots=16, max_tokens=32)
    _check_rows_agree(forward, 16)
    exact = forward.decode
    nudge = torch.arange(16)[:, None] * 1e-6
    monkeypatch.setattr(forward, "decode", lambda *a: exact(*a) + nudge)
    with pytest.raises(ConfigError, match="depend on its place in a batch of 16"):
        _check_rows_agree(forward, 16)


def test_bfloat16_models_are_served(make_subject: MakeSubject, make_model: Callable[..., Any]) -> None:
    encoder = make_subject().encoder
    model = copy.deepcopy(make_model("qwen3")).to(torch.bfloat16)

    def make(
        *, slots: int = 8, max_tokens: int = 160, deterministic: bool = False, in_flight: bool = False
    ) -> TorchEngine:
        own = copy.deepcopy(model)
        return build(own, encoder, slots=slots, max_tokens=max_tokens, deterministic=deterministic, in_flight=in_flight)

    subject = EngineUnderTest(make=make, model=model, encoder=encoder, tolerance=0.3)
    request = subject.request("r", "a prompt for half precision")

    async def use(engine: TorchEngine) -> Completion:
        return await engine.generate(request)

    expect_reference(subject, model, request, run(subject, use))
