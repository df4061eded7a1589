"""The batcher by itself: rounds, budgets, and what is not finite."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from ramet.engines.counters import Counters
from ramet.engines.protocol import Completion, Request, Sampling
from ramet.engines.torch.batcher import Event, SequenceDone, SequenceFailed, SequenceFirst, TorchBatcher
from ramet.engines.torch.forward import Forward
from ramet.engines.torch.model_runner import ModelRunner
from ramet.models.encoder import Encoder

MakeBatcher = Callable[..., TorchBatcher]


@pytest.fixture
def model(make_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    return copy.deepcopy(make_model("qwen2", tie=False))


@pytest.fixture
def make_batcher(model: PreTrainedModel, encoder: Encoder) -> MakeBatcher:
    def make(
        *, slots: int = 4, prefill_tokens: int = 2048, deterministic: bool = False, counters: Counters | None = None
    ) -> TorchBatcher:
        compute = ModelRunner(Forward(model, slots=16, max_tokens=64), deterministic=deterministic)
        counters = counters or Counters()
        return TorchBatcher(compute, encoder, counters, slots=slots, max_tokens=64, prefill_tokens=prefill_tokens)

    return make


def request(id: str, n: int, *, first: int = 0, key: str = "", max_tokens: int = 4, **options: Any) -> Request:
    """A request whose prompt is `n` tokens counting up from the first."""
    sampling = Sampling(max_tokens=max_tokens, **options)
    return Request(id=id, token_ids=array("i", range(first, first + n)), sampling=sampling, seed=1, cache_key=key)


def finish(batcher: TorchBatcher) -> list[Event]:
    events: list[Event] = []
    while not batcher.idle:
        events += batcher.step()
    return events


def poison(model: PreTrainedModel, token: int | None = None) -> None:
    rows = slice(None) if token is None else token
    with torch.no_grad():
        model.model.embed_tokens.weight[rows] = float("nan")


def test_a_long_prompt_is_computed_in_parts_while_others_decode(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(prefill_tokens=10)
    batcher.submit(request("short", 5, max_tokens=3), 0)
    batcher.submit(request("long", 41, max_tokens=1), 0)
    ended = [[e.sequence.request.id for e in batcher.step() if isinstance(e, SequenceDone)] for _ in range(5)]
    assert ended == [[], [], ["short"], [], ["long"]]


def test_requests_with_one_prompt_join_in_the_round_that_computes_it(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher()
    for i in range(4):
        batcher.submit(request(f"r{i}", 30, max_tokens=1), 0)
    done = [event.completion for event in batcher.step() if isinstance(event, SequenceDone)]
    assert sorted(completion.cached_tokens for completion in done) == [0, 29, 29, 29]


def test_a_prompt_is_computed_in_the_pass_of_a_decode_step(make_batcher: MakeBatcher, monkeypatch) -> None:
    """Its slot is between two that decode, so a row pads the decode step there."""
    passes: list[list[tuple[int, ...]]] = []
    run = Forward._run
    monkeypatch.setattr(
        Forward,
        "_run",
        lambda self, blocks: passes.append([tuple(b.tokens.shape) for b in blocks]) or run(self, blocks),
    )

    def late(*, beside: bool) -> Completion:
        batcher = make_batcher()
        for i, tokens in enumerate((8, 1, 8) if beside else ()):
            batcher.submit(request(f"r{i}", 20, first=7 * i, max_tokens=tokens), 0)
        batcher.step()
        batcher.submit(request("late", 30, first=9, max_tokens=5), 0)
        passes.clear()
        return completions(finish(batcher))["late"]

    alone = late(beside=False)
    assert passes[:2] == [[(1, 29)], [(1, 1)]]
    one = late(beside=True)
    assert passes[:2] == [[(3, 1), (1, 29)], [(3, 1)]]
    assert one.token_ids == alone.token_ids
    assert list(one.logprobs) == pytest.approx(list(alone.logprobs), abs=1e-5)
    assert list(one.entropies) == pytest.approx(list(alone.entropies), abs=1e-5)


def test_a_request_of_a_later_epoch_waits_for_it(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher()
    batcher.submit(request("now", 5), 0)
    batcher.submit(request("later", 5), 1)
    while not batcher.drained:
        batcher.step()
    assert not batcher.running and not batcher.idle
    batcher.next_epoch(version=9)
    done = [event for event in finish(batcher) if isinstance(event, SequenceDone)]
    assert [set(event.completion.policy_versions) for event in done] == [{9}]


def test_a_key_released_before_its_request_starts_holds_no_slot(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(deterministic=True)
    for i in range(9):
        batcher.submit(request(f"r{i}", 5 + i, key=f"k{i}"), 0)
    batcher.release([f"k{i}" for i in range(9)])
    assert sum(isinstance(event, SequenceDone) for event in finish(batcher)) == 9


def test_an_aborted_request_that_waits_ends_without_tokens(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher()
    batcher.submit(request("r", 5), 0)
    first, done = batcher.abort("r")
    assert isinstance(first, SequenceFirst) and first.report.entropies == ()
    assert isinstance(done, SequenceDone) and len(done.completion.token_ids) == 0
    assert batcher.idle


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_failed_request_leaves_its_slot_clean(
    make_batcher: MakeBatcher, model: PreTrainedModel, deterministic: bool
) -> None:
    batcher = make_batcher(deterministic=deterministic)
    poison(model, token=29)
    batcher.submit(request("bad", 30, temperature=0.0), 0)
    assert [type(event) for event in finish(batcher)] == [SequenceFailed]
    batcher.submit(request("good", 20, temperature=0.0), 0)
    assert [type(event) for event in finish(batcher)] == [SequenceFirst, SequenceDone]


def test_a_row_that_only_pads_leaves_nothing_behind(make_batcher: MakeBatcher, model: PreTrainedModel) -> None:
    batcher = make_batcher(deterministic=True)
    batcher.submit(request("idle", 30, key="idle", max_tokens=1), 0)
    finish(batcher)
    poison(model)  # the idle slot goes on padding, and writes after the end of its sequence
    batcher.submit(request("bad", 3, key="bad"), 0)
    assert [type(event) for event in finish(batcher)] == [SequenceFailed]
    torch.nn.init.normal_(model.model.embed_tokens.weight)
    batcher.release(["idle"])
    batcher.submit(request("good", 28), 0)
    assert [type(event) for event in finish(batcher)] == [SequenceFirst, SequenceDone]


def test_new_weights_follow_weights_that_were_not_finite(make_batcher: MakeBatcher, model: PreTrainedModel) -> None:
    batcher = make_batcher(prefill_tokens=20)
    poison(model)
    for i in range(2):  # aborted within their prompts: nobody saw their numbers
        batcher.submit(request(f"half {i}", 40, first=i), 0)
    for i in range(2):
        batcher.step()
        batcher.abort(f"half {i}")
    batcher.submit(request("bad", 5, first=9), 0)
    assert [type(event) for event in finish(batcher)] == [SequenceFailed]
    torch.nn.init.normal_(model.model.embed_tokens.weight)
    batcher.next_epoch(version=1)
    for i in range(2):
        batcher.submit(request(f"good {i}", 5, first=20 * i), 1)
    assert SequenceFailed not in [type(event) for event in finish(batcher)]


def sample(batcher: TorchBatcher, count: int) -> None:
    for _ in range(count):
        batcher.step()


def completions(events: list[Event]) -> dict[str, Completion]:
    return {event.sequence.request.id: event.completion for event in events if isinstance(event, SequenceDone)}


def test_new_weights_cut_what_runs_at_the_token_where_they_come(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher()
    for i in range(3):
        batcher.submit(request(f"r{i}", 20 + i, max_tokens=6), 0)
    sample(batcher, 2)
    batcher.next_epoch(version=1)
    sample(batcher, 3)
    batcher.next_epoch(version=2)
    found = completions(finish(batcher))
    assert [list(one.policy_versions) for one in found.values()] == [[0, 0, 1, 1, 1, 2]] * 3
    assert [len(one.logprobs) for one in found.values()] == [len(one.entropies) for one in found.values()] == [6] * 3


def test_the_same_weights_again_change_nothing_wherever_they_cut(make_batcher: MakeBatcher) -> None:
    def play(cuts: tuple[int, ...]) -> dict[str, Completion]:
        batcher = make_batcher(slots=2, prefill_tokens=16)  # some wait, and prompts are computed in parts
        for i in range(4):
            batcher.submit(request(f"r{i}", 30, first=7 * (i // 2), max_tokens=9), 0)
        events: list[Event] = []
        for step in range(40):
            events += batcher.step()
            if step in cuts:
                batcher.next_epoch(version=step + 1)
        assert batcher.idle and [type(event) for event in events].count(SequenceFirst) == 4
        return completions(events)

    whole = play(())
    for cuts in [(0,), (1,), (4, 5), (3, 9, 20), tuple(range(0, 20, 3))]:
        for id, one in play(cuts).items():
            assert one.token_ids == whole[id].token_ids
            assert list(one.logprobs) == pytest.approx(list(whole[id].logprobs), abs=1e-5)
            assert list(one.entropies) == pytest.approx(list(whole[id].entropies), abs=1e-5)


def test_a_prompt_that_was_shared_is_computed_again_once(make_batcher: MakeBatcher) -> None:
    counters = Counters()
    batcher = make_batcher(counters=counters)
    for i in range(4):
        batcher.submit(request(f"r{i}", 30, max_tokens=8), 0)
    sample(batcher, 3)
    assert counters.take()["engine/prompt_tokens"] == 120
    batcher.next_epoch(version=1)
    finish(batcher)
    metrics = counters.take()
    assert metrics["engine/updates_in_flight"] == 1
    assert metrics["engine/prompt_tokens"] == 0
    assert 32 <= metrics["engine/recomputed_tokens"] <= 32 + 3 * 3


def test_what_was_cut_goes_on_before_what_waits(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(slots=2)
    for i in range(4):
        batcher.submit(request(f"r{i}", 5, first=9 * i), 0)
    sample(batcher, 2)
    batcher.next_epoch(version=1)
    assert list(completions(finish(batcher))) == ["r0", "r1", "r2", "r3"]


def test_a_request_that_was_cut_may_be_aborted_before_it_goes_on(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher()
    batcher.submit(request("r", 5, max_tokens=9), 0)
    sample(batcher, 3)
    batcher.next_epoch(version=1)
    done = completions(batcher.abort("r"))["r"]
    assert (list(done.policy_versions), len(done.logprobs), len(done.entropies)) == ([0, 0, 0], 3, 3)
    assert batcher.idle


def test_refused_weights_cut_nothing(make_batcher: MakeBatcher) -> None:
    counters = Counters()
    batcher = make_batcher(counters=counters)
    batcher.submit(request("r", 5), 0)
    sample(batcher, 2)
    batcher.next_epoch(None)
    assert set(completions(finish(batcher))["r"].policy_versions) == {0}
    assert (batcher.epoch, counters.take()["engine/updates_in_flight"]) == (1, 0)


def test_a_deterministic_fork_is_served_though_its_parents_cache_was_dropped(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(deterministic=True)
    batcher.submit(request("parent", 20, key="p"), 0)
    finish(batcher)
    batcher.next_epoch(version=1)
    batcher.submit(replace(request("fork", 24, key="f"), fork_of="p"), 1)
    assert list(completions(finish(batcher))) == ["fork"]
