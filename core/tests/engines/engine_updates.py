"""Checks of weight updates that every engine with `Capability.WEIGHT_UPDATE` must pass; see `engine_checks`.

An update in flight comes while an engine computes, so no check decides after which token it comes: each looks at the
versions that came back. Requests are long enough to be cut well before their end.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product

import torch
from engine_subject import TEXTS, EngineUnderTest, complete, expect_reference, run
from transformers import PreTrainedModel

from ramet.engines.protocol import Completion, Engine, FinishReason, FirstReport, Request, Sampling
from ramet.models.encoder import Encoder
from ramet.testing.expect import expect

LONG = 110  # tokens of requests that are to be cut


def check_weight_update(subject: EngineUnderTest) -> None:
    """New weights serve what comes after them, no cache survives them, and what was in flight ends before them."""
    changed = changed_copy(subject.model)

    async def use(engine: Engine) -> None:
        request = replace(subject.request("old", TEXTS[3]), cache_key="key")  # longer than the blocks of caches
        running = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0)
        update = asyncio.create_task(engine.update_weights(changed.state_dict().items(), 7))
        await asyncio.sleep(0)
        follower = replace(request, id="new")
        after = await engine.generate(follower)
        before = await running
        await update
        versions = set(before.policy_versions), set(after.policy_versions)
        expect(versions == ({0}, {7}), f"completions name the versions {versions} instead of 0 and 7")
        expect(engine.policy_version == 7, f"the engine's version is {engine.policy_version}")
        expect(after.cached_tokens == 0, "a cache of the old weights was used")
        expect_reference(subject, subject.model, request, before)
        expect_reference(subject, changed, follower, after)

    run(subject, use)


def check_bad_weights(subject: EngineUnderTest) -> None:
    """Weights that do not fit raise and change nothing, also for requests in flight."""
    name, tensor = next(iter(subject.model.state_dict().items()))
    everything = subject.model.state_dict()
    bad = {
        "a missing parameter": [(n, t) for n, t in everything.items() if "down_proj" not in n],
        "an unknown name": [*everything.items(), ("model.unknown.weight", tensor)],
        "a wrong shape": [*((n, t) for n, t in everything.items() if n != name), (name, tensor[:-1])],
    }

    async def use(engine: Engine) -> None:
        request = subject.request("request")
        running = await _begun(engine, [subject.request("running", sampling=Sampling(max_tokens=LONG))])
        for what, weights in bad.items():
            try:
                await engine.update_weights([(n, t + 1.0) for n, t in weights], 3)
            except ValueError:
                continue
            expect(False, f"weights with {what} were taken")
        expect(engine.policy_version == 0, "refused weights changed the version")
        expect_reference(subject, {0: subject.model}, request, await engine.generate(request))
        await running.expect(subject, {0: subject.model})

    for in_flight in (False, True):
        run(subject, use, in_flight=in_flight)


def check_update_in_flight(subject: EngineUnderTest) -> None:
    """Requests in flight are cut: what comes before is the old weights', what comes after the new ones' alone.

    So it is for requests that share a prompt, for those that wait for a slot, and for a second update.
    """
    models = {version: changed_copy(subject.model, seed=version) for version in (3, 4)} | {0: subject.model}
    text, long = TEXTS[3], Sampling(max_tokens=LONG)

    async def use(engine: Engine) -> None:
        group = [replace(subject.request(f"r{i}", text, seed=i, sampling=long), cache_key=f"r{i}") for i in range(5)]
        jobs = await _begun(engine, group)
        engine.metrics()
        for version in (3, 4):
            await engine.update_weights(models[version].state_dict().items(), version)
            expect(engine.policy_version == version, f"the engine's version is {engine.policy_version}")
        await jobs.expect(subject, models, cut=True)
        metrics = engine.metrics()
        expect(metrics["engine/updates_in_flight"] >= 1, "no update in flight was counted")
        expect(metrics["engine/recomputed_tokens"] >= len(group[0].token_ids), "no recomputed tokens were counted")

    run(subject, use, slots=4, in_flight=True)


def check_forks_after_update_in_flight(subject: EngineUnderTest) -> None:
    """A next turn and a fork after an update in flight find no cache of the old weights, and one of the new ones."""
    changed = changed_copy(subject.model)

    async def use(engine: Engine) -> None:
        root = replace(subject.request("root", 2 * TEXTS[2]), cache_key="root")  # longer than the blocks of caches
        first = await engine.generate(root)
        known = array("i", [*root.token_ids, *first.token_ids, *subject.encoder.untrusted("\n42\n")])
        again = replace(root, id="next", token_ids=known, seed=1)
        fork = replace(again, id="fork", seed=2, cache_key="fork", fork_of="root")
        jobs = await _begun(engine, [subject.request("running", sampling=Sampling(max_tokens=LONG))])
        await engine.update_weights(changed.state_dict().items(), 1)
        for request, cached in ((again, 0), (fork, subject.block)):
            completion = await engine.generate(request)
            expect(completion.cached_tokens >= cached, "a cache of the new weights was not used")
            expect(completion.cached_tokens == 0 or cached > 0, "a cache of the old weights was used")
            expect_reference(subject, {1: changed}, request, completion)
        await jobs.expect(subject, {0: subject.model, 1: changed})

    run(subject, use, in_flight=True)


def check_update_in_flight_changes_nothing_else(subject: EngineUnderTest) -> None:
    """The same weights again, in flight: tokens, stops, limits, first reports and the caller's aborts as without."""
    same = subject.model.state_dict()
    long = Sampling(max_tokens=LONG)
    free = [subject.request(f"free{i}", TEXTS[i], seed=i, sampling=long) for i in range(3)]
    undisturbed = complete(subject, free)
    stop, start = _long_stop(subject.encoder, undisturbed[0].token_ids)
    stopped = replace(free[0], id="stopped", sampling=replace(long, stop=("never to be seen", stop)))
    limited = replace(free[1], id="limited", first_tokens=LONG - 20)
    doomed = replace(free[2], id="doomed")

    async def use(engine: Engine) -> None:
        jobs = await _begun(engine, [stopped, limited, doomed], after=start + 1)
        await engine.update_weights(same.items(), 1)
        engine.abort("doomed")
        found = await jobs.expect(subject, {0: subject.model, 1: subject.model}, cut=True)
        for completion, other in zip(found, undisturbed, strict=True):
            tokens = list(completion.token_ids)
            expect(tokens == list(other.token_ids)[: len(tokens)], "the update changed what was sampled")
        ends = [completion.finish for completion in found]
        expect(ends == [FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT], f"they ended with {ends}")
        expect(found[0].stop == stop, "a stop string across the cut was not found")
        expect(len(found[1].token_ids) == LONG, f"{len(found[1].token_ids)} tokens instead of {LONG}")
        expect(len(found[2].token_ids) < LONG, "an aborted request went on")

    run(subject, use, in_flight=True)


def check_updates_keep_their_order(subject: EngineUnderTest) -> None:
    """An update waits for the one before it, and what came before each is served by its own weights."""
    models = {version: changed_copy(subject.model, seed=version) for version in (1, 2)} | {0: subject.model}

    async def use(engine: Engine) -> None:
        jobs = await _begun(engine, [subject.request("old", sampling=Sampling(max_tokens=LONG))])
        waits = asyncio.create_task(engine.update_weights(models[1].state_dict().items(), 1))
        await asyncio.sleep(0)
        between = asyncio.create_task(engine.generate(subject.request("between")))
        await asyncio.sleep(0)
        await engine.update_weights(models[2].state_dict().items(), 2)
        expect(waits.done(), "an update overtook an earlier one")
        [old] = await jobs.expect(subject, models)
        expect(set(old.policy_versions) == {0}, f"an update that waits cut a request: {set(old.policy_versions)}")
        expect_reference(subject, models, subject.request("between"), await between)

    run(subject, use)


class _Jobs:
    """Requests in flight with their first reports."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.reports: list[FirstReport] = []
        self.begun = asyncio.Event()
        self.tasks = [asyncio.create_task(engine.generate(request, self._on_first)) for request in requests]

    def _on_first(self, report: FirstReport) -> None:
        self.reports.append(report)
        if report.request == self.requests[0].id:
            self.begun.set()

    async def expect(
        self, subject: EngineUnderTest, models: dict[int, PreTrainedModel], *, cut: bool = False
    ) -> list[Completion]:
        """All must end with exact numbers and one first report each; with `cut`, one at least has several versions."""
        found = await asyncio.gather(*self.tasks)
        expect(len(self.reports) == len(found), f"{len(self.reports)} first reports of {len(found)} requests")
        reports = {report.request: report.entropies for report in self.reports}
        for request, completion in zip(self.requests, found, strict=True):
            expect_reference(subject, models, request, completion)
            k = request.first_tokens
            expect(reports[request.id] == tuple(completion.entropies[:k]), "a first report is of other tokens")
        mixed = [completion for completion in found if len(set(completion.policy_versions)) > 1]
        expect(bool(mixed) or not cut, "the update waited for the requests in flight")
        return found


async def _begun(engine: Engine, requests: Sequence[Request], *, after: int = 3) -> _Jobs:
    """Start requests, of which the first has sampled so many tokens."""
    jobs = _Jobs(engine, [replace(requests[0], first_tokens=after), *requests[1:]])
    await jobs.begun.wait()
    return jobs


def _long_stop(encoder: Encoder, ids: Sequence[int]) -> tuple[str, int]:
    """The text of nearly all of these tokens, and where they begin: wherever after that a request is cut, this stop
    string spans the cut.
    """
    for start, end in product(range(2, len(ids) // 4), range(len(ids) - 1, len(ids) // 2, -1)):
        stop, before, upto = encoder.decode(ids[start:end]), encoder.decode(ids[: end - 1]), encoder.decode(ids[:end])
        if stop[0].isascii() and stop[-1].isascii() and upto.endswith(stop) and stop not in before:
            return stop, start
    raise AssertionError("no stop string can be made of these tokens")


def changed_copy(model: PreTrainedModel, *, seed: int = 11) -> PreTrainedModel:
    """Other weights of the same shapes."""
    copy = deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator).to(parameter))
    return copy
