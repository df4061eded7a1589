"""What the engine checks work with: the engine under test and the plain model that it must agree with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from ramet.engines.protocol import Completion, Engine, Request, Sampling
from ramet.models.encoder import Encoder
from ramet.testing.expect import expect

T = TypeVar("T")
TEXTS = ("What is 12 + 7?", "a", "List three colours, one a line.", "Why? " * 9)


class MakeEngine(Protocol):
    """Build a fresh engine that serves the subject's model as version 0."""

    def __call__(
        self, *, slots: int = 8, max_tokens: int = 160, deterministic: bool = False, in_flight: bool = False
    ) -> Engine: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnderTest:
    """An engine under test, the plain model that it must agree with (never changed), and their encoder."""

    make: MakeEngine
    model: PreTrainedModel
    encoder: Encoder
    block: int = 1
    tolerance: float = 1e-4  # nats, of log-probabilities and entropies

    def request(self, id: str, text: str = TEXTS[0], *, seed: int = 0, sampling: Sampling | None = None) -> Request:
        """A request for this text; 12 tokens without stops unless said otherwise."""
        ids = self.encoder.markup(text)
        return Request(id=id, token_ids=ids, sampling=sampling or Sampling(max_tokens=12), seed=seed)


def run(
    subject: EngineUnderTest,
    use: Callable[[Engine], Awaitable[T]],
    *,
    slots: int = 8,
    deterministic: bool = False,
    in_flight: bool = False,
) -> T:
    """Use a fresh engine and close it."""

    async def inside() -> T:
        engine = subject.make(slots=slots, deterministic=deterministic, in_flight=in_flight)
        try:
            return await asyncio.wait_for(use(engine), timeout=120)
        finally:
            await engine.close()

    return asyncio.run(inside())


def complete(subject: EngineUnderTest, requests: Sequence[Request], *, slots: int = 8) -> list[Completion]:
    """Serve these requests at once on a fresh engine."""

    async def use(engine: Engine) -> list[Completion]:
        return await asyncio.gather(*(engine.generate(request) for request in requests))

    return run(subject, use, slots=slots)


@torch.no_grad()
def reference(model: PreTrainedModel, request: Request, sampled: Sequence[int]) -> tuple[list[float], list[float]]:
    """Log-probabilities and entropies of sampled tokens by the plain model, at the request's temperature."""
    tokens = torch.tensor([[*request.token_ids, *sampled]], device=model.device)
    following = model(tokens).logits[0, len(request.token_ids) - 1 : -1].float()
    logps = torch.log_softmax(following / (request.sampling.temperature or 1.0), dim=-1)
    chosen = logps.gather(1, tokens[0, len(request.token_ids) :, None])[:, 0]
    return chosen.tolist(), (-(logps.exp() * logps).sum(-1)).tolist()


def expect_reference(
    subject: EngineUnderTest,
    models: PreTrainedModel | Mapping[int, PreTrainedModel],
    request: Request,
    completion: Completion,
) -> None:
    """The completion's numbers must be the plain model's; of several, by policy version, each token's own."""
    count = len(completion.token_ids)
    expect(count > 0, f"request {request.id!r} sampled nothing")
    expect(len(completion.logprobs) == count, f"{len(completion.logprobs)} log-probabilities for {count} tokens")
    versions = completion.policy_versions
    expect(len(versions) == count, f"{len(versions)} policy versions for {count} tokens")
    if isinstance(models, Mapping):
        expect(set(versions) <= set(models), f"request {request.id!r}: versions {sorted(set(versions))}")
        expect(list(versions) == sorted(versions), f"request {request.id!r}: its policy versions decrease")
    by_version = models if isinstance(models, Mapping) else dict.fromkeys(versions, models)
    numbers = {v: reference(by_version[v], request, completion.token_ids) for v in set(versions)}
    logprobs = [numbers[v][0][i] for i, v in enumerate(versions)]
    entropies = [numbers[v][1][i] for i, v in enumerate(versions)]
    _expect_close(subject, "log-probabilities", request, completion.logprobs, logprobs)
    if completion.entropies:
        _expect_close(subject, "entropies", request, completion.entropies, entropies)


def _expect_close(
    subject: EngineUnderTest, what: str, request: Request, found: Sequence[float], wanted: Sequence[float]
) -> None:
    expect(len(found) == len(wanted), f"{len(found)} {what} for {len(wanted)} tokens of request {request.id!r}")
    gap = max(abs(a - b) for a, b in zip(found, wanted, strict=True))
    expect(gap < subject.tolerance, f"{what} of request {request.id!r} differ by {gap:.2e} from the plain model")
