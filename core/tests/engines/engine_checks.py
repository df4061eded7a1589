"""Checks that every engine must pass, as functions that take an `EngineUnderTest`: all engines are held to the same.

`CHECKS` maps each check to the capabilities that it needs; those of weight updates are written in `engine_updates`, and
those of deterministic engines, which are not among these, in `engine_deterministic`.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from engine_subject import TEXTS, EngineUnderTest, complete, expect_reference, run
from engine_updates import (
    check_bad_weights,
    check_forks_after_update_in_flight,
    check_update_in_flight,
    check_update_in_flight_changes_nothing_else,
    check_updates_keep_their_order,
    check_weight_update,
)

from ramet.engines.protocol import Capability, Completion, Engine, FinishReason, FirstReport, Sampling
from ramet.errors import InfraError
from ramet.models.encoder import Encoder
from ramet.testing.expect import expect


def check_logprobs_match(subject: EngineUnderTest) -> None:
    """Log-probabilities and entropies are exact at temperatures 1 and 0.7, and greedy ones are those at 1."""
    requests = [
        subject.request(f"{t}-{i}", text, seed=i, sampling=Sampling(max_tokens=12, temperature=t))
        for t in (1.0, 0.7, 0.0)
        for i, text in enumerate(TEXTS)
    ]
    for request, completion in zip(requests, complete(subject, requests), strict=True):
        expect_reference(subject, subject.model, request, completion)
        expect(completion.finish is FinishReason.LENGTH, f"{completion.finish} instead of length")
        expect(completion.prompt_tokens == len(request.token_ids), "prompt_tokens is not the prompt's length")


def check_greedy(subject: EngineUnderTest) -> None:
    """Temperature 0 takes the most likely token, and so does top_k 1; numbers stay those of the whole distribution."""
    greedy = subject.request("greedy", sampling=Sampling(max_tokens=12, temperature=0.0))
    narrow = subject.request("narrow", sampling=Sampling(max_tokens=12, top_k=1), seed=3)
    tight = subject.request("tight", sampling=Sampling(max_tokens=12, top_p=1e-6), seed=4)
    first, *others = complete(subject, [greedy, narrow, tight])
    logits = subject.model(torch.tensor([[*greedy.token_ids, *first.token_ids]], device=subject.model.device)).logits[0]
    best = logits[len(greedy.token_ids) - 1 : -1].argmax(-1).tolist()
    expect(list(first.token_ids) == best, "temperature 0 did not take the most likely tokens")
    for request, other in zip((narrow, tight), others, strict=True):
        expect(other.token_ids == first.token_ids, f"{request.id}: not the most likely tokens")
        expect_reference(subject, subject.model, request, other)


def check_top_logprobs(subject: EngineUnderTest) -> None:
    """At each of the first k tokens those of the most likely ones, at the temperature, and the sampled one's."""
    plain = [
        replace(subject.request(f"{t}", sampling=Sampling(max_tokens=6, temperature=t)), first_tokens=4)
        for t in (1.0, 0.7)
    ]
    for request, found in zip(plain, complete(subject, [replace(one, top_logprobs=10) for one in plain]), strict=True):
        ids = torch.tensor([[*request.token_ids, *found.token_ids]], device=subject.model.device)
        logits = subject.model(ids).logits[0, len(request.token_ids) - 1 : -1].float()
        logps = torch.log_softmax(logits / request.sampling.temperature, dim=-1)
        expect(len(found.top_logprobs) == 4, f"top_logprobs of {len(found.top_logprobs)} tokens instead of 4")
        for place, values in enumerate(found.top_logprobs):
            best, own = logps[place].topk(10), found.token_ids[place]
            wanted = best.values.tolist() + [logps[place, own].item()] * (own not in best.indices.tolist())
            close = torch.allclose(torch.tensor(sorted(values)), torch.tensor(sorted(wanted)), atol=1e-3)
            expect(len(values) == len(wanted) and close, f"top_logprobs at token {place} are not the model's")
    expect(complete(subject, plain[:1])[0].top_logprobs == (), "top_logprobs that nobody asked for")


def check_seeds(subject: EngineUnderTest) -> None:
    """A seed decides the tokens, whatever else is in the batch; another seed gives others."""
    alone = complete(subject, [subject.request("alone", seed=5)])[0]
    crowd = [subject.request(f"crowd-{i}", TEXTS[i % 4], seed=i, sampling=Sampling(max_tokens=3 + i)) for i in range(9)]
    together = complete(subject, [*crowd, subject.request("same", seed=5), subject.request("other", seed=6)])
    expect(together[-2].token_ids == alone.token_ids, "the same seed gave other tokens in a batch")
    expect(together[-1].token_ids != alone.token_ids, "another seed gave the same tokens")


def check_stop_strings(subject: EngineUnderTest) -> None:
    """Sampling ends with the token that completes a stop string, also across tokens; prompts do not count."""
    free = complete(subject, [subject.request("free", sampling=Sampling(max_tokens=60))])[0]
    ids = list(free.token_ids)
    cut = next(i for i in range(4, len(ids)) if _is_new(subject.encoder, ids, i))
    stop = subject.encoder.decode(ids[cut - 1 : cut + 1])
    sampling = Sampling(max_tokens=60, stop=("never to be seen", stop))
    prompted = subject.request("prompted", TEXTS[0] + stop, sampling=replace(sampling, max_tokens=2))
    stopped, short = complete(subject, [subject.request("stopped", sampling=sampling), prompted])
    expect(list(stopped.token_ids) == ids[: cut + 1], "the tokens up to and with the stop string were not returned")
    expect(stopped.finish is FinishReason.STOP and stopped.stop == stop, f"{stopped.finish}, {stopped.stop!r}")
    expect(short.finish is FinishReason.LENGTH, "a stop string in the prompt ended the request")


def _is_new(encoder: Encoder, ids: Sequence[int], i: int) -> bool:
    """Tokens i - 1 and i spell whole characters that occur nowhere before token i ends."""
    pair, before = encoder.decode(ids[i - 1 : i + 1]), encoder.decode(ids[:i])
    spelled = len(pair) > 1 and "\ufffd" not in pair and encoder.decode(ids[: i + 1]).endswith(pair)
    return spelled and pair not in before  # token i may have no text of its own


def check_stop_tokens(subject: EngineUnderTest) -> None:
    """A stop token ends the request and is returned; without it the limit does."""
    free = complete(subject, [subject.request("free")])[0]
    token = free.token_ids[4]
    sampling = Sampling(max_tokens=12, stop_token_ids=(token,))
    ended = complete(subject, [subject.request("ended", sampling=sampling)])[0]
    expect(list(ended.token_ids) == list(free.token_ids)[: free.token_ids.index(token) + 1], "wrong tokens returned")
    expect(ended.finish is FinishReason.END and ended.stop is None, f"{ended.finish}, {ended.stop!r}")


def check_first_report(subject: EngineUnderTest) -> None:
    """The first report comes once: after k tokens, or at the end of a shorter request; never after the completion."""
    requests = [
        replace(subject.request(f"k{k}", sampling=Sampling(max_tokens=n)), first_tokens=k)
        for k, n in ((4, 12), (12, 12), (20, 5))
    ]
    seen: list[FirstReport] = []

    async def use(engine: Engine) -> None:
        for request in requests:
            completion = await engine.generate(request, seen.append)
            expect(len(seen) == 1, f"{len(seen)} first reports of one request")
            k = min(request.first_tokens, len(completion.token_ids))
            expect(seen[0].request == request.id, "the report names another request")
            expect(seen.pop().entropies == tuple(completion.entropies[:k]), "the report's entropies are others")

    run(subject, use)


def check_abort(subject: EngineUnderTest) -> None:
    """An aborted request returns what it has, a cancelled one frees its slot, and the others go on."""

    async def use(engine: Engine) -> None:
        long = Sampling(max_tokens=140)
        first = asyncio.get_running_loop().create_future()
        doomed = replace(subject.request("doomed", "a", sampling=long), first_tokens=3)
        jobs = [
            asyncio.create_task(engine.generate(doomed, lambda report: first.set_result(report))),
            asyncio.create_task(engine.generate(subject.request("cancelled", "a", sampling=long))),
            asyncio.create_task(engine.generate(subject.request("other"))),
        ]
        await first
        engine.abort("doomed")
        engine.abort("unknown")
        jobs[1].cancel()
        aborted, _, other = await asyncio.gather(*jobs, return_exceptions=True)
        assert isinstance(aborted, Completion) and isinstance(other, Completion)
        expect(aborted.finish is FinishReason.ABORT, f"{aborted.finish} instead of abort")
        expect(3 <= len(aborted.token_ids) < 140, f"{len(aborted.token_ids)} tokens of an aborted request")
        expect_reference(subject, subject.model, doomed, aborted)
        expect(other.finish is FinishReason.LENGTH and len(other.token_ids) == 12, "another request was disturbed")
        again = await engine.generate(subject.request("doomed"))
        expect(again.token_ids == other.token_ids, "the engine does not serve as before")

    run(subject, use, slots=4)


def check_queueing(subject: EngineUnderTest) -> None:
    """More requests than slots wait for their turn, also when every key holds on to its cache."""
    requests = [replace(subject.request(f"r{i}", TEXTS[i % 4], seed=i), cache_key=f"r{i}") for i in range(19)]
    for request, completion in zip(requests, complete(subject, requests, slots=4), strict=True):
        expect_reference(subject, subject.model, request, completion)


def check_bad_requests(subject: EngineUnderTest) -> None:
    """Requests that cannot be served raise ValueError, and name what is wrong."""
    good = subject.request("bad")
    vocab = subject.model.config.vocab_size
    bad = {
        "no tokens": replace(good, token_ids=array("i")),
        "unknown tokens": replace(good, token_ids=array("i", [vocab + 1])),
        "too long": replace(good, sampling=Sampling(max_tokens=10_000)),
        "nothing to sample": replace(good, sampling=Sampling(max_tokens=0)),
        "negative temperature": replace(good, sampling=Sampling(max_tokens=4, temperature=-1.0)),
    }

    async def use(engine: Engine) -> None:
        for what, request in bad.items():
            try:
                await engine.generate(request)
            except ValueError as error:
                expect("'bad'" in str(error), f"{what}: the message does not name the request: {error}")
            else:
                expect(False, f"a request with {what} was served")
        await engine.generate(good)

    run(subject, use)


def check_prefix_reuse(subject: EngineUnderTest) -> None:
    """A next turn and a fork compute only what is new, and their numbers stay exact."""

    async def use(engine: Engine) -> None:
        root = replace(subject.request("root", TEXTS[2], seed=1), cache_key="root")
        first = await engine.generate(root)
        known = [*root.token_ids, *first.token_ids]
        prefix = array("i", [*known, *subject.encoder.untrusted("\nthe tool says 42\n")])
        second = replace(root, id="next", token_ids=prefix, seed=2)
        fork = replace(second, id="fork", seed=3, cache_key="fork", fork_of="root")
        later = replace(fork, id="later", seed=4, cache_key="later")
        continued, forked = await engine.generate(second), await engine.generate(fork)
        engine.release(["root", "unknown"])
        engine.release(["fork"])
        for request, completion in ((second, continued), (fork, forked), (later, await engine.generate(later))):
            expect_reference(subject, subject.model, request, completion)
        _expect_cached(subject, "a next turn", continued, len(known) - 1)
        _expect_cached(subject, "a fork", forked, len(prefix) - 1)
        again = engine.metrics().get("engine/recomputed_prefix_tokens", 0.0)
        expect(again <= 2 * len(prefix) + subject.block, f"forks recomputed {again:.0f} tokens")

    run(subject, use)


def check_shared_prompt(subject: EngineUnderTest) -> None:
    """Rollouts of one prompt that start together compute it once."""
    text = "Every rollout of a group begins with this very prompt, which is long enough to be worth sharing."
    requests = [replace(subject.request(f"r{i}", text, seed=i), cache_key=f"r{i}") for i in range(6)]
    completions = complete(subject, requests)
    computed = sum(c.prompt_tokens - c.cached_tokens for c in completions)
    length = len(requests[0].token_ids)
    expect(computed <= length + 5 * subject.block, f"{computed} tokens computed for 6 rollouts of {length} tokens")
    for request, completion in zip(requests, completions, strict=True):
        expect_reference(subject, subject.model, request, completion)


def _expect_cached(subject: EngineUnderTest, what: str, completion: Completion, wanted: int) -> None:
    enough = wanted - wanted % subject.block
    expect(completion.cached_tokens >= enough, f"{what}: {completion.cached_tokens} tokens cached instead of {enough}")


def check_close(subject: EngineUnderTest) -> None:
    """Closing fails what is in flight, and whatever comes later; it may be done twice."""

    async def use(engine: Engine) -> None:
        pending = asyncio.create_task(engine.generate(subject.request("r", "a", sampling=Sampling(max_tokens=150))))
        await asyncio.sleep(0)
        await engine.close()
        for job in (pending, engine.generate(subject.request("late"))):
            try:
                await job
            except InfraError:
                continue
            expect(False, "a closed engine answered")

    run(subject, use)


def check_metrics(subject: EngineUnderTest) -> None:
    """Counters are those since the last call."""

    async def use(engine: Engine) -> None:
        request = subject.request("r")
        await engine.generate(request)
        metrics = engine.metrics()
        expect(metrics["engine/sampled_tokens"] == 12, f"{metrics['engine/sampled_tokens']} instead of 12 tokens")
        expect(metrics["engine/prompt_tokens"] == len(request.token_ids), "wrong number of prompt tokens")
        expect(engine.metrics()["engine/sampled_tokens"] == 0, "counters were not reset")

    run(subject, use)


_NONE: frozenset[Capability] = frozenset()
_SEEDS = frozenset({Capability.SEEDS})
_WEIGHTS = frozenset({Capability.WEIGHT_UPDATE})
_TOP = frozenset({Capability.TOP_LOGPROBS})
CHECKS: Mapping[Callable[[EngineUnderTest], None], frozenset[Capability]] = {
    check_logprobs_match: _NONE,
    check_greedy: _NONE,
    check_top_logprobs: _TOP,
    check_seeds: _SEEDS,
    check_stop_strings: _SEEDS,
    check_stop_tokens: _SEEDS,
    check_first_report: _NONE,
    check_abort: _SEEDS,
    check_queueing: _NONE,
    check_bad_requests: _NONE,
    check_prefix_reuse: _NONE,
    check_shared_prompt: _NONE,
    check_weight_update: _WEIGHTS,
    check_bad_weights: _WEIGHTS,
    check_update_in_flight: _WEIGHTS,
    check_forks_after_update_in_flight: _WEIGHTS,
    check_update_in_flight_changes_nothing_else: _WEIGHTS | _SEEDS,
    check_updates_keep_their_order: _WEIGHTS,
    check_close: _NONE,
    check_metrics: _NONE,
}
