"""The check of deterministic engines: whatever the timing, the same requests give the same bits.

A small agentic step is run several times: roots of one prompt, a tool result after the first turn, forks from there
at the first report of the second turn, a third turn. What differs is the order in which requests arrive and how
long tools take.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from engine_subject import TEXTS, EngineUnderTest, expect_reference, run

from ramet.engines.protocol import Completion, Engine, FirstReport, Request, Sampling
from ramet.testing.expect import expect

TURNS = 3
SHARED = "Every task begins with the same words. "
SLOTS = 17  # rollouts in flight at once: 2 prompts with 4 roots, each of which forks once, and one to spare
Completions = dict[str, tuple[Request, Completion]]


@dataclass(slots=True)
class _SimulatedRollouts:
    subject: EngineUnderTest
    engine: Engine
    timing: Random
    completions: Completions = field(default_factory=dict)
    forks: list[asyncio.Task[None]] = field(default_factory=list)

    async def rollout(self, key: str, tokens: array[int], turn: int = 0, fork_of: str = "") -> None:
        while turn < TURNS:
            await asyncio.sleep(self.timing.choice((0.0, 0.0, 0.002, 0.02)))
            request = self._request(key, tokens, turn, fork_of)
            completion = await self.engine.generate(request, self._first_report(key, tokens, turn, fork_of))
            self.completions[request.id] = request, completion
            result = self.subject.encoder.untrusted(f" tool {turn} says {key} ")
            tokens = array("i", [*tokens, *completion.token_ids, *result])
            turn, fork_of = turn + 1, ""

    def _first_report(self, key: str, tokens: array[int], turn: int, fork_of: str) -> Callable[[FirstReport], None]:
        def on_first(report: FirstReport) -> None:
            if turn == 1 and not fork_of and "." not in key:
                self.forks.append(asyncio.create_task(self.rollout(f"{key}.0", tokens, turn, fork_of=key)))

        return on_first

    def _request(self, key: str, tokens: array[int], turn: int, fork_of: str) -> Request:
        sampling = Sampling(max_tokens=8 + 3 * turn, temperature=0.8)
        return Request(
            id=f"{key}/{turn}",
            token_ids=tokens,
            sampling=sampling,
            seed=sum(key.encode()) * 31 + turn,
            cache_key=key,
            fork_of=fork_of,
            first_tokens=3,
        )


def _roll_out(subject: EngineUnderTest, timing: Random, *, n_roots: int, slots: int = SLOTS) -> Completions:
    async def use(engine: Engine) -> Completions:
        rollouts = _SimulatedRollouts(subject, engine, timing)
        prompts = [subject.encoder.markup(SHARED + text) for text in TEXTS[:2]]
        roots = [(f"{p}-{i}", prompt) for p, prompt in enumerate(prompts) for i in range(n_roots)]
        timing.shuffle(roots)
        await asyncio.gather(*(rollouts.rollout(key, tokens) for key, tokens in roots))
        await asyncio.gather(*rollouts.forks)
        return rollouts.completions

    return run(subject, use, slots=slots, deterministic=True)


def check_deterministic(subject: EngineUnderTest) -> None:
    """Tokens, log-probabilities and entropies are the same bits for every timing, and those of the plain model."""
    first = _roll_out(subject, Random(0), n_roots=4)
    expect(len(first) == 40, f"{len(first)} turns instead of 40")
    for request, completion in first.values():
        expect_reference(subject, subject.model, request, completion)
    for seed in (1, 2):
        _expect_same(first, _roll_out(subject, Random(seed), n_roots=4))
    _expect_same(first, _roll_out(subject, Random(3), n_roots=1))


def _expect_same(wanted: Completions, found: Completions) -> None:
    for id, (_, completion) in found.items():
        before = replace(wanted[id][1], cached_tokens=completion.cached_tokens)
        expect(before == completion, f"request {id} gave other numbers under another timing")
