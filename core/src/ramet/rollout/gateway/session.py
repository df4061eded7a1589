"""A session: one agent's access to the policy, for one rollout.

A request gets the ids in front of its reply (`conversations`), and goes to the thread that they continue, token by
token (`threads`). A fork's session answers from its parent's turns up to the fork.
"""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ramet.engines.protocol import Completion, Engine, FinishReason, Request, Sampling
from ramet.errors import ConfigError, InfraError, PluginError
from ramet.rollout.completion import Versions, completion_problem, ended_at_stop, sampled_segments
from ramet.rollout.gateway.calls import SampledMessage, SampledTurn, call_reader, read_json_calls
from ramet.rollout.gateway.conversations import Conversations, History, digests_of
from ramet.rollout.gateway.kept import KeptResponses
from ramet.rollout.gateway.messages import (
    BadRequest,
    Digest,
    SaidCall,
    TooLong,
    TurnReply,
    TurnRequest,
    in_call_order,
    short_id,
    text_difference,
)
from ramet.rollout.gateway.rewards import SessionRewards
from ramet.rollout.gateway.threads import SessionThreads, SessionTurn
from ramet.rollout.keys import stable_seed
from ramet.types import Segment, StopReason, ThreadStart

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder


class SessionWatch(Protocol):
    """Receives what happens in a session, in its event loop. Raises nothing."""

    def accepted(self, turn: SessionTurn) -> None:
        """A request was accepted: its turn begins."""
        ...

    def first(self, turn: SessionTurn, entropies: Sequence[float]) -> None:
        """The first tokens of the turn are there."""
        ...

    def over(self, turn: SessionTurn, completion: Completion | None, seconds: float) -> None:
        """The turn is complete after so many seconds in the engine; None: it failed."""
        ...

    def mismatched(self) -> None:
        """A request of a fork is not in the record (`AgentSession.mismatch`): the session has ended."""
        ...


class NoWatch:
    """The watch of a session that nothing follows."""

    def accepted(self, turn: SessionTurn) -> None: ...
    def first(self, turn: SessionTurn, entropies: Sequence[float]) -> None: ...
    def over(self, turn: SessionTurn, completion: Completion | None, seconds: float) -> None: ...
    def mismatched(self) -> None: ...


QUIET = NoWatch()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The limits of one session."""

    max_turns: int
    max_tokens: int  # of all turns, sampled and inserted; the first request's prompt left out
    max_tool_calls: int | None = None  # that replies may ask for; None: any number


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Settings of all sessions of a group."""

    engine: Engine
    encoder: Encoder
    limits: SessionLimits
    sampling: Sampling  # of every turn, whatever a client asks for; lengths and stops are each turn's
    seed: int
    versions: Versions | None = None  # of the weights that may sample; None: any
    history: History = "keep"  # template: requests are rendered in full, as the chat template shows earlier turns
    in_order: bool = False  # one turn at a time, in the order in which requests arrive
    first_tokens: int = 1  # tokens whose entropies are reported while the turn is sampled; engines take at least 1


class AgentSession:
    """Turns of one agent. Methods are called in the event loop of the engine."""

    def __init__(
        self,
        name: str,
        settings: SessionSettings,
        *,
        threads: SessionThreads | None = None,
        watch: SessionWatch = QUIET,
    ) -> None:
        """`name` is unique within the engine: requests and caches have it in their names, and seeds derive from it."""
        self.name = name
        self.threads = SessionThreads(settings.encoder) if threads is None else threads
        self.watch = watch
        self.malformed_calls = 0
        self.kept = KeptResponses()
        self.rewards = SessionRewards()
        self.heard_at = time.monotonic()  # the last sign of life of the client
        self.results: dict[str, tuple[str, float]] = {}  # by call: its result, and when a request first had it
        self.refused: StopReason | None = None  # the limit that a request met
        self.failures: dict[Digest, str] = {}  # requests that the engine failed, and that did not succeed later
        self.broken: ConfigError | PluginError | None = None  # a mistake in the engine, not an outage
        self.mismatch: str | None = None  # why this fork's requests differ from the record
        self._settings, self._engine, self._encoder = settings, settings.engine, settings.encoder
        self._conversations = Conversations(settings.encoder, self.threads, settings.history)
        self._replies: dict[str, asyncio.Task[TurnReply]] = {}  # by the name of the request, of equal ones the newest
        self._running: set[asyncio.Task[TurnReply]] = set()  # requests that are being answered
        self._recorded: list[SessionTurn] = []  # of a fork: turns that its agent still has to ask for again
        self._refusals: dict[Digest, tuple[int, BadRequest]] = {}  # by request: the number of turns then, and why
        self._fork_turn: SessionTurn | None = None  # of a fork: the turn that it samples first, until then
        self._parents_turns: Sequence[SessionTurn] = ()  # of a fork
        self._forked, self._turn_over = asyncio.Event(), asyncio.Event()  # its first turn began; one ended
        self._held: set[int] = set()  # threads that the engine may keep
        self._in_order = asyncio.Lock()
        self._ended = False

    def fork(self, name: str, turn: int, token: int, watch: SessionWatch) -> AgentSession:
        """A session that answers from this one's record up to `turn`, and samples that turn after `token` tokens.

        Its agent runs again. A request that the record does not have ends the session (`mismatch`).
        """
        threads = self.threads.fork(turn, token, self.cache_key)
        fork = AgentSession(name, self._settings, threads=threads, watch=watch)
        fork._recorded = [earlier for earlier in threads.turns[:turn] if earlier.reply is not None]
        fork._refusals = {digest: refused for digest, refused in self._refusals.items() if refused[0] <= turn}
        fork._fork_turn, fork._parents_turns = threads.turns[turn], self.threads.turns
        fork._conversations = self._conversations.until(turn, threads)
        return fork

    @property
    def silent_s(self) -> float:
        """Seconds since the client's last sign of life; 0 while a request is being answered."""
        return 0.0 if self._running else time.monotonic() - self.heard_at

    @property
    def is_replaying(self) -> bool:
        """Whether it is a fork whose agent has not asked for all turns of the record yet."""
        return self._fork_turn is not None or bool(self._recorded)

    async def reply(self, request: TurnRequest, *, name: str = "", again: bool = False) -> TurnReply:
        """Sample the next message. `again`: the request repeats the one with this `name`, if there was one, and gets
        its reply: both are one turn.

        Raises `BadRequest`, and `InfraError` if the engine failed. A caller that is cancelled does not end the turn.
        """
        running = self._replies.get(name) if again else None
        if running is None or (running.done() and (running.cancelled() or running.exception() is not None)):
            running = self._replies[name] = asyncio.create_task(self._reply(request))
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():
                self._check_open()  # raises where the session has ended meanwhile
            raise
        finally:
            self.heard_at = time.monotonic()

    def count(self, request: TurnRequest) -> int:
        """The tokens of the prompt that the request would have. Nothing is recorded. Raises `BadRequest`."""
        self._check_open()
        request = in_call_order(request)
        return len(self._conversations.prompt(request, digests_of(request)))

    def segments(self) -> tuple[list[Segment], tuple[ThreadStart, ...]]:
        """The segments of the rollout so far in order of turns, and how threads 1, 2, … began."""
        return self.threads.segments()

    def end(self) -> None:
        """Refuse further requests."""
        self._ended = True
        for running in self._running:
            running.cancel()

    async def drain(self) -> None:
        """Refuse further requests, and wait until none is being answered."""
        self.end()
        if self._running:
            await asyncio.wait(self._running)

    def release(self, kept: int | None = None) -> None:
        """Let the engine forget all threads but one and those that are being sampled.

        An engine's memory is for as many keys as rollouts run: a session that waits for it must hold none.
        """
        idle = {number for number in self._held if number != kept and not self.threads.threads[number].busy}
        self._held -= idle
        self._engine.release([self.cache_key(number) for number in sorted(idle)])

    def cache_key(self, thread: int) -> str:
        """The engine's name for a thread; the first has the session's own."""
        return f"{self.name}#{thread}" if thread else self.name

    def _check_open(self) -> None:
        if self._ended:
            raise BadRequest("this session has ended", status=404, code="session_ended")

    def _check_calls(self, request: TurnRequest) -> None:
        """Raises `BadRequest` for tools whose calls would not be read."""
        try:
            if request.tools:
                call_reader(self._encoder)
        except ConfigError as error:
            raise BadRequest(f"tools cannot be offered: {error}", field="tools") from error

    async def _reply(self, request: TurnRequest) -> TurnReply:
        self._check_open()
        request = in_call_order(request)
        self._check_calls(request)
        digests, now = digests_of(request), time.monotonic()
        for said in request.messages:
            if said.role == "tool":
                self.results.setdefault(said.call_id, (said.text, now))
        if (recorded := await self._replayed(request, digests)) is not None:
            return replace(recorded, model=request.model)
        async with self._in_order if self._settings.in_order else nullcontext():
            return await self._sampled(request, digests)

    async def _replayed(self, request: TurnRequest, digests: Sequence[Digest]) -> TurnReply | None:
        """The recorded reply to an equal request; None for a request that is sampled. Where the agent makes several
        at once, a request that comes before the fork turn's, and is one of a later turn, waits for that.

        Raises `BadRequest` again for a request that was refused; for one that the record does not have it ends the
        session too.
        """
        for number, turn in enumerate(self._recorded):
            if turn.request == digests[-1]:
                del self._recorded[number]
                return turn.reply
        if self._fork_turn is None or digests[-1] == self._fork_turn.request:
            return None
        if any(turn.request == digests[-1] for turn in self._parents_turns[self._fork_turn.number + 1 :]):
            await self._forked.wait()
            return None
        if (refused := self._refusals.get(digests[-1])) is not None:
            raise refused[1].again()
        expected = self._recorded[0] if self._recorded else self._fork_turn
        self.mismatch = (
            f"run again, the agent made another request in turn {expected.number} than the one that is recorded"
            f"{self._difference(request, digests, expected)}"
        )
        self._ended = True
        self.watch.mismatched()
        raise BadRequest(self.mismatch, status=409, code="replay_mismatch")

    def _difference(self, request: TurnRequest, digests: Sequence[Digest], turn: SessionTurn) -> str:
        """Say where the request begins to differ from a recorded turn's; nothing if it cannot be rendered."""
        try:
            prompt = self._conversations.prompt(request, digests)
        except BadRequest:
            return ""
        recorded = self.threads.threads[turn.thread].path[: turn.n_prompt]
        if prompt == recorded:
            return ": it offers other tools"
        return f": {text_difference(self._encoder.decode(recorded), self._encoder.decode(prompt))}"

    async def _begin(self, request: TurnRequest, digests: Sequence[Digest]) -> SessionTurn:
        """Accept a request, once turns that are being sampled leave room for it. Raises `BadRequest`."""
        while True:
            self._check_open()
            if (turn := self._fork_turn) is None:
                prompt = self._conversations.prompt(request, digests)
                room = self._room(len(self.threads.turns), len(prompt), self.threads.n_inserted(prompt), request)
                if room > 0:
                    turn = self.threads.begin(prompt, digests[-1], request.asked)
            else:
                room = self._room(turn.number, turn.n_prompt + turn.n_given, 0, request, turn.n_given)
            if turn is not None and room > 0:
                break
            await self._turn_over.wait()
        self._fork_turn, self.refused, turn.n_reserved = None, None, room
        self.threads.threads[turn.thread].busy = True
        self._forked.set()
        return turn

    async def _sampled(self, request: TurnRequest, digests: Sequence[Digest]) -> TurnReply:
        digest = digests[-1]
        try:
            turn = await self._begin(request, digests)
        except BadRequest as error:
            self._refusals.setdefault(digest, (len(self.threads.turns), error.again()))
            raise
        self.watch.accepted(turn)
        segments: Sequence[Segment] = ()
        completion, reply, text, ended, started = None, None, "", False, time.perf_counter()
        shared = "".join(segment.text for segment in turn.given)
        try:
            completion = await self._complete(turn, turn.n_reserved, request.stop)
            if shared:
                completion = ended_at_stop(completion, shared, request.stop, self._encoder)
            ids, ended = self._ids(turn, completion)
            text = self._encoder.decode(ids)
            segments = list(sampled_segments(completion, turn.number, text[len(shared) :], self._encoder))
            self.failures.pop(digest, None)
            turn.reply = reply = self._read(request, turn, completion, ids, text)
        except Exception as error:
            self.failures[digest] = str(error)
            raise
        finally:
            self.threads.end(turn, segments)
            if reply is not None:
                self._conversations.add(request, digest, turn, reply.said, text, ended)
            if self._ended or any(thread.busy for thread in self.threads.threads):
                self.release(kept=0 if self._ended else None)
            waiting, self._turn_over = self._turn_over, asyncio.Event()
            waiting.set()
            self.watch.over(turn, completion, time.perf_counter() - started)
        return reply

    def _ids(self, turn: SessionTurn, completion: Completion) -> tuple[array[int], bool]:
        """The turn's ids without an end of sequence, what a fork began with included, and whether one was sampled."""
        ids = completion.token_ids
        ended = completion.finish is FinishReason.END and len(ids) > 0 and ids[-1] in self._encoder.eos_ids
        given = array("i", [i for segment in turn.given for i in segment.token_ids])
        return given + (ids[:-1] if ended else ids), ended

    def _room(self, n_turns: int, n_prompt: int, n_inserted: int, request: TurnRequest, n_given: int = 0) -> int:
        """Tokens that may be sampled; of a fork, after the `n_given` that it begins with. 0: the turns that are being
        sampled may need all that is left.

        Raises `BadRequest` in the form by which clients know that a limit is reached.
        """
        limits = self._settings.limits
        calls = [call for turn in self.threads.turns if turn.reply is not None for call in turn.reply.calls]
        if limits.max_tool_calls is not None and len(calls) > limits.max_tool_calls:
            what = f"the limit of {limits.max_tool_calls} tool calls is reached"
            raise self._refused(StopReason.CALL_LIMIT, what, n_prompt)
        if n_turns >= limits.max_turns:
            raise self._refused(StopReason.TURN_LIMIT, f"the limit of {limits.max_turns} turns is reached", n_prompt)
        most = self._engine.info.max_tokens
        of_model, of_session = most - n_prompt, limits.max_tokens - self.threads.n_tokens - n_inserted
        if of_model < 1:
            what = f"maximum context length is {most} tokens: these messages have {n_prompt} tokens"
            raise self._refused(StopReason.LENGTH, what, n_prompt, most - 1)
        if of_session < 1:
            what = f"maximum context length is {limits.max_tokens} tokens: this session has used all its tokens"
            raise self._refused(StopReason.LENGTH, what, n_prompt)
        room = max(0, min(of_model, of_session - sum(turn.n_reserved for turn in self.threads.turns)))
        return room if request.max_tokens is None else min(room, max(1, request.max_tokens - n_given))

    def _refused(self, limit: StopReason, what: str, n_prompt: int, most: int = 0) -> TooLong:
        self.refused = limit
        return TooLong(what, n_tokens=n_prompt, most=most)

    async def _complete(self, turn: SessionTurn, max_tokens: int, stop: tuple[str, ...]) -> Completion:
        thread, settings = self.threads.threads[turn.thread], self._settings
        self.release(thread.number)
        request = Request(
            id=f"{self.name}/{turn.number}",
            token_ids=array("i", thread.path),
            sampling=replace(settings.sampling, max_tokens=max_tokens, stop=stop, stop_token_ids=self._encoder.eos_ids),
            seed=stable_seed("gateway", settings.seed, self.name, turn.number),
            cache_key=self.cache_key(thread.number),
            fork_of="" if settings.in_order else thread.cache_of,  # whether it is still held depends on the clock
            first_tokens=settings.first_tokens,
        )
        try:
            self._held.add(thread.number)
            completion = await self._engine.generate(request, lambda first: self.watch.first(turn, first.entropies))
        except asyncio.CancelledError:
            self._engine.abort(request.id)
            raise
        except (ConfigError, PluginError) as error:
            self.broken = error
            raise
        except Exception as error:  # whatever an engine raises, one request failed and the others continue
            raise InfraError(f"{type(error).__name__}: {error}") from error
        if completion.finish is FinishReason.ABORT:
            raise InfraError(f"request {request.id!r} was aborted")
        if (problem := completion_problem(completion, settings.versions)) is not None:
            raise InfraError(f"request {request.id!r} was answered with what cannot be used: {problem}")
        return completion

    def _read(
        self, request: TurnRequest, turn: SessionTurn, completion: Completion, ids: array[int], text: str
    ) -> TurnReply:
        """The reply as a client gets it: thoughts, text and calls apart. Malformed calls stay in the text."""
        id, stop = f"{self.name}/{turn.number}", completion.stop if completion.finish is FinishReason.STOP else None
        text = text.partition(stop)[0] if stop else text
        message = SampledMessage(text=text)
        if request.prompt is None:
            prompt = self.threads.threads[turn.thread].path[: turn.n_prompt]
            read = call_reader(self._encoder) if request.tools else read_json_calls
            message = read(SampledTurn(prompt=prompt, ids=ids, text=text, stop=stop), request.tools)
            self.malformed_calls += message.n_malformed
        calls = [
            SaidCall(id=f"call_{short_id(id)}_{number}", name=call.name, arguments=_json(call.arguments))
            for number, call in enumerate(message.calls)
        ]
        return TurnReply(
            id=id,
            created=int(time.time()),
            model=request.model,
            text=message.text,
            thoughts=message.thoughts,
            calls=tuple(calls),
            finish="length" if completion.finish is FinishReason.LENGTH else "calls" if calls else "stop",
            stop=stop,
            prompt_tokens=turn.n_prompt,
            sampled_tokens=turn.n_given + len(completion.token_ids),
            cached_tokens=completion.cached_tokens,
        )


def _json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
