"""Doubles for tests: an engine and a branch policy that answer from a script, a tool that misbehaves on demand, and
finished rollouts written by hand (no tokenizer: one token per byte).

They keep the contract of what they replace: token ids from the real encoder, stop strings, limits, reports, aborts.
torch and transformers are imported only inside `tiny_encoder`.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from ramet.components.services import RunServices
from ramet.engines.protocol import Capability, Completion, EngineInfo, FinishReason, FirstReport, Request
from ramet.errors import InfraError
from ramet.rollout.keys import RolloutKey
from ramet.types import (
    BranchAction,
    BranchEvent,
    GroupView,
    Need,
    Services,
    Start,
    StartRoots,
    ToolCall,
    ToolResult,
    ToolSchema,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ramet.models.encoder import Encoder

from ramet.types import Origin, Rollout, Segment, SegmentKind, StopReason, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The scripted engine's sample of one turn.

    The text ends at the first stop string in it; without one an end of sequence follows. `entropies` are repeated over
    the sampled tokens, and so are `versions`, in order; without any, tokens are of the engine's version. `first_s`
    passes before the first report, `rest_s` after it.
    """

    text: str
    entropies: tuple[float, ...] = (1.0,)
    first_s: float = 0.0
    rest_s: float = 0.0
    fails: str | None = None  # raise `InfraError` with this message instead
    logprob: float = -1.0  # of every sampled token
    versions: tuple[int, ...] = ()


Script: TypeAlias = Callable[[str, str, int], Reply | str]  # (task, path, turn) -> reply


class ScriptedEngine:
    """An `Engine` whose replies are given by (task, branch path, turn).

    `requests` keeps the requests, `released` the released cache keys, `aborted` the aborted requests.
    """

    def __init__(
        self,
        script: Script | Mapping[tuple[str, str, int], Reply | str],
        encoder: Encoder,
        *,
        max_tokens: int = 1_000_000,
        entropies: bool = True,
    ) -> None:
        self.script: Script = script if callable(script) else lambda *key: script[key]
        self.encoder = encoder
        able = frozenset(Capability) if entropies else frozenset(Capability) - {Capability.ENTROPY}
        self.info = EngineInfo(name="scripted", capabilities=able, vocab_size=encoder.vocab_size, max_tokens=max_tokens)
        self.in_flight = False
        self.requests: list[Request] = []
        self.released: list[str] = []
        self.aborted: list[str] = []
        self.running = 0
        self.most_running = 0
        self._version = 0
        self._sampled = 0

    @property
    def policy_version(self) -> int:
        return self._version

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        self.requests.append(request)
        said = self.said(request)
        reply = Reply(text=said) if isinstance(said, str) else said
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._reply(request, reply, on_first)
        finally:
            self.running -= 1

    def said(self, request: Request) -> Reply | str:
        """Return the reply to a request."""
        key, turn = read_request_id(request.id)
        return self.script(key.task, key.path, turn)

    async def _reply(
        self, request: Request, reply: Reply, on_first: Callable[[FirstReport], None] | None
    ) -> Completion:
        if reply.first_s or reply.rest_s:
            await asyncio.sleep(reply.first_s)
        if reply.fails is not None:
            raise InfraError(reply.fails)
        completion = self._completion(request, reply)
        if on_first is not None:
            on_first(FirstReport(request=request.id, entropies=tuple(completion.entropies[: request.first_tokens])))
        if reply.rest_s:
            await asyncio.sleep(reply.rest_s)
        self._sampled += len(completion.token_ids)
        return completion

    def _completion(self, request: Request, reply: Reply) -> Completion:
        sampling = request.sampling
        text, stop = cut_at_stop(reply.text, sampling.stop)
        ids = self.encoder.markup(text)
        finish = FinishReason.STOP if stop else FinishReason.END
        if stop is None:
            ids.append(self.encoder.eos_id)
        if len(ids) > sampling.max_tokens:
            ids, finish, stop = ids[: sampling.max_tokens], FinishReason.LENGTH, None
        spread = [reply.entropies[i % len(reply.entropies)] for i in range(len(ids))]
        able = Capability.ENTROPY in self.info.capabilities
        versions = reply.versions or (self._version,)
        return Completion(
            token_ids=ids,
            logprobs=array("f", [reply.logprob] * len(ids)),
            entropies=array("f", spread if able else []),
            finish=finish,
            stop=stop,
            policy_versions=array("i", sorted(versions[i % len(versions)] for i in range(len(ids)))),
            prompt_tokens=len(request.token_ids),
            cached_tokens=0,
            top_logprobs=((reply.logprob,),) * min(len(ids), request.first_tokens) if request.top_logprobs else (),
        )

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def release(self, cache_keys: Sequence[str]) -> None:
        self.released.extend(cache_keys)

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._version = version

    def metrics(self) -> Mapping[str, float]:
        sampled, self._sampled = self._sampled, 0
        return {"engine/sampled_tokens": float(sampled)}

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class ScriptedPolicy:
    """A branch policy whose answers are given by (event, rollout, turn), as `ScriptedEngine`'s replies are.

    Where an event has no rollout or turn the key has "" and -1. Without an entry `Start` begins `roots` rollouts, and
    other events get no action. `asked` keeps every event with the view that came with it.
    """

    def __init__(
        self,
        roots: int,
        answers: Mapping[tuple[type[BranchEvent], str, int], Sequence[BranchAction]] | None = None,
        *needs: Need,
    ) -> None:
        self.answers = {(Start, "", -1): [StartRoots(n=roots)], **(answers or {})}
        self.needs = frozenset(needs)
        self.asked: list[tuple[BranchEvent, GroupView]] = []

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        self.asked.append((event, group))
        return self.answers.get((type(event), getattr(event, "rollout", ""), getattr(event, "turn", -1)), [])

    @property
    def events(self) -> list[BranchEvent]:
        return [event for event, _ in self.asked]

    def view_at(self, event: BranchEvent) -> GroupView:
        """The view that came with the first event that equals this one. Raises StopIteration."""
        return next(view for asked, view in self.asked if asked == event)


def read_request_id(id: str) -> tuple[RolloutKey, int]:
    """Return which rollout and turn a request of the rollout worker belongs to."""
    key, _, turn = id.rpartition("/")
    return RolloutKey.parse(key), int(turn)


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """The text up to and with the stop string that ends first, and that string."""
    ends = [(text.index(stop_string) + len(stop_string), stop_string) for stop_string in stop if stop_string in text]
    if not ends:
        return text, None
    end, first_stop = min(ends)
    return text[:end], first_stop


@dataclass(slots=True)
class EchoTool:
    """Returns its input after `delay_s`, or misbehaves: raises `error`, hangs, or returns `size` characters.

    `delay_s` may be a function of the call. `stubborn` ignores that many cancellations while it hangs.
    """

    schema: ToolSchema
    delay_s: float | Callable[[ToolCall], float] = 0.0
    error: Exception | None = None
    fails: int | None = None  # only the first so many calls raise `error`; None: all
    hangs: bool = False
    stubborn: int = 0
    size: int | None = None
    returns: Any = None  # instead of a result
    calls: list[ToolCall] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    async def __call__(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._answer(call)
        finally:
            self.running -= 1

    async def _answer(self, call: ToolCall) -> ToolResult:
        delay = self.delay_s(call) if callable(self.delay_s) else self.delay_s
        if delay:
            await asyncio.sleep(delay)
        if self.hangs:
            await self._hang()
        if self.error is not None and (self.fails is None or len(self.calls) <= self.fails):
            raise self.error
        if self.returns is not None:
            return self.returns  # type: ignore[no-any-return]
        text = str(next(iter(call.arguments.values()), ""))
        return ToolResult(text=text if self.size is None else (text or "x") * math.ceil(self.size / max(1, len(text))))

    async def _hang(self) -> None:
        ignored = 0
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if ignored >= self.stubborn:
                    raise
                ignored += 1


def echo_tool(
    name: str = "python", *, deterministic: bool = False, concurrent: bool = True, **behaviour: Any
) -> EchoTool:
    """An `EchoTool` that takes one text. `behaviour`: the fields of `EchoTool`."""
    schema = ToolSchema(
        name=name,
        description="Returns its input.",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        deterministic=deterministic,
        concurrent=concurrent,
    )
    return EchoTool(schema, **behaviour)


@contextmanager
def local_services(*, seed: int = 1) -> Iterator[Services]:
    """Services for `start`: limiters of this process, and a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ramet-services-") as folder:
        yield RunServices(folder=Path(folder), seed=seed).of("tried")


def tiny_encoder() -> Encoder:
    """An encoder with one token per byte and one special token per tag."""
    from ramet.models.encoder import Encoder
    from ramet.models.tiny import make_tokenizer

    return Encoder(make_tokenizer())


def written_rollout(
    task: Task, turns: Sequence[str], *, results: Sequence[str] = (), answer: str | None = None, id: str = "0"
) -> Rollout:
    """A rollout whose policy wrote `turns`; `results[i]` was inserted after turn i."""
    segments = [_inserted(SegmentKind.PROMPT, 0, task.question)]
    for turn, text in enumerate(turns):
        segments.append(_sampled(turn, text))
        if turn < len(results):
            segments.append(_inserted(SegmentKind.RESULT, turn, results[turn]))
    stop = StopReason.END if answer is None else StopReason.ANSWER
    return Rollout(id=id, task=task, segments=tuple(segments), stop=stop, answer=answer)


def answered_rollout(task: Task, answer: str) -> Rollout:
    """A rollout that gives `answer` in the usual tags and as its final answer."""
    return written_rollout(task, [f"<think>I know it.</think><answer>{answer}</answer>"], answer=answer)


def empty_rollout(task: Task) -> Rollout:
    """A rollout whose policy ended its turn without writing anything."""
    return written_rollout(task, [""])


def _sampled(turn: int, text: str) -> Segment:
    ids = array("i", list(text.encode()))
    return Segment(
        origin=Origin.SAMPLED,
        kind=SegmentKind.TURN,
        turn=turn,
        text=text,
        token_ids=ids,
        logprobs=array("f", [-0.5] * len(ids)),
        entropies=array("f", [0.5] * len(ids)),
        policy_version=0,
    )


def _inserted(kind: SegmentKind, turn: int, text: str) -> Segment:
    return Segment(origin=Origin.INSERTED, kind=kind, turn=turn, text=text, token_ids=array("i", list(text.encode())))
