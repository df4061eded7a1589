"""A session: one agent's access to the policy, for one rollout.

A request's messages are looked up among the conversations that this session replied to. Where they continue one, the
recorded ids continue, and only what follows is rendered: the policy is never conditioned on a second tokenisation of
its own text. Any other request is rendered in full. Both then go to the thread that they continue, token by token
(`threads`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ramet.engines.protocol import Completion, Engine, FinishReason, Request, Sampling
from ramet.errors import ConfigError, InfraError
from ramet.rollout.completion import Versions, completion_problem, sampled_segments
from ramet.rollout.gateway.kept import KeptResponses
from ramet.rollout.gateway.messages import (
    BadRequest,
    Said,
    SaidCall,
    TooLong,
    TurnReply,
    TurnRequest,
    in_call_order,
    short_id,
)
from ramet.rollout.gateway.threads import SessionThreads, SessionTurn
from ramet.rollout.keys import stable_seed
from ramet.rollout.steps.json_calls import JsonCall, located_calls, message_place
from ramet.types import Insert, Message, Segment, ThreadStart, ToolSchema

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

Digest = bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The limits of one session."""

    max_turns: int
    max_tokens: int  # of all turns, sampled and inserted; the first request's prompt left out


class AgentSession:
    """Turns of one agent. Methods are called in the event loop of the engine."""

    def __init__(
        self,
        name: str,
        *,
        engine: Engine,
        encoder: Encoder,
        limits: SessionLimits,
        sampling: Sampling,
        seed: int,
        versions: Versions | None = None,
    ) -> None:
        """`name` is unique within the engine: its requests and caches have it in their names, and seeds derive from it.

        `sampling`: of every turn, whatever a client asks for; lengths and stops are each turn's. `versions`: of the
        weights that may sample; None: any.
        """
        self.name = name
        self.threads = SessionThreads(encoder)
        self.malformed_calls = 0
        self.kept = KeptResponses()
        self._engine, self._encoder = engine, encoder
        self._limits, self._sampling, self._seed, self._versions = limits, sampling, seed, versions
        self._known: dict[Digest, SessionTurn] = {}  # conversations up to a reply -> the turn of that reply
        self._texts: dict[str, tuple[SessionTurn, int]] = {}  # the same without a chat template, and how many tokens
        self._replies: dict[str, asyncio.Task[TurnReply]] = {}  # by the name of the request
        self._ended = False

    async def reply(self, request: TurnRequest, *, name: str = "", again: bool = False) -> TurnReply:
        """Sample the next message. `again`: the request repeats the one with this `name`, if there was one, and gets
        its reply: both are one turn.

        Raises `BadRequest`, and `InfraError` if the engine failed. A caller that is cancelled does not end the turn.
        """
        running = self._replies.get(name) if again else None
        if running is None or (running.done() and (running.cancelled() or running.exception() is not None)):
            running = self._replies[name] = asyncio.create_task(self._reply(request))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():
                self._check_open()  # raises where the session has ended meanwhile
            raise

    def count(self, request: TurnRequest) -> int:
        """The tokens of the prompt that the request would have. Nothing is recorded. Raises `BadRequest`."""
        self._check_open()
        return len(self._prompt(in_call_order(request)))

    def segments(self) -> tuple[tuple[Segment, ...], tuple[ThreadStart, ...]]:
        """The segments of the rollout so far in order of turns, and how threads 1, 2, … began."""
        return self.threads.segments()

    def end(self) -> None:
        """Refuse further requests, and let the engine forget the session."""
        self._ended = True
        for running in self._replies.values():
            running.cancel()
        self._engine.release([self._cache_key(thread.number) for thread in self.threads.threads])

    def _check_open(self) -> None:
        if self._ended:
            raise BadRequest("this session has ended", status=404, code="session_ended")

    async def _reply(self, request: TurnRequest) -> TurnReply:
        self._check_open()
        request = in_call_order(request)
        prompt = self._prompt(request)
        max_tokens = self._room(prompt, request)
        turn = self.threads.begin(prompt, request.asked)
        segments: Sequence[Segment] = ()
        try:
            completion = await self._complete(turn, prompt, max_tokens, request.stop)
            ids = completion.token_ids
            ended = completion.finish is FinishReason.END and len(ids) > 0 and ids[-1] in self._encoder.eos_ids
            text = self._encoder.decode(ids[:-1] if ended else ids)
            segments = list(sampled_segments(completion, turn.number, text, self._encoder))
        finally:
            self.threads.end(turn, segments)
        reply = self._read(request, turn, completion, text)
        if request.prompt is None:
            self._known[self._digests(request.tools, [*request.messages, reply.said])[-1]] = turn
        else:
            self._texts[request.prompt + text] = turn, turn.end - ended
        return reply

    def _prompt(self, request: TurnRequest) -> array[int]:
        """The ids in front of the reply. Raises `BadRequest` for messages that the chat template does not take."""
        if request.prompt is not None:
            return self._continued(request.prompt)
        messages = request.messages
        digests = self._digests(request.tools, messages)
        known = next((n for n in range(len(messages) - 1, 0, -1) if digests[n] in self._known), 0)
        rest = messages[known:]
        if known and all(said.role != "assistant" for said in rest):
            turn = self._known[digests[known]]
            path = turn.thread.path[: turn.end]
            if (parts := self._suffix(rest, path)) is not None:
                for part in parts:
                    path.extend(self._encoder.insert(part))
                return path
        try:
            ids = self._encoder.prompt([self._message(said) for said in messages], request.tools)
        except ConfigError as error:
            raise BadRequest(f"the model's chat template does not take these messages: {error}") from error
        self._check_complete(messages, ids)
        return ids

    def _check_complete(self, messages: Sequence[Said], ids: array[int]) -> None:
        """Raises `BadRequest` for system messages after the first one that the chat template leaves out, as some do."""
        later = [said.text.strip() for said in messages[1:] if said.role == "system"]
        text = self._encoder.decode(ids) if later else ""
        if not all(said in text for said in later):
            raise BadRequest("the model's chat template leaves out system messages that are not the first message")

    def _continued(self, prompt: str) -> array[int]:
        """The ids of a text: those recorded for the longest text that it continues, and of the rest as it is.

        An end of sequence that was sampled is not in the text, and so not in the ids.
        """
        known = max((text for text in self._texts if prompt.startswith(text)), key=len, default="")
        rest = self._encoder.untrusted(prompt[len(known) :])
        if not known:
            return rest
        turn, n_tokens = self._texts[known]
        return turn.thread.path[:n_tokens] + rest

    def _suffix(self, rest: Sequence[Said], path: array[int]) -> Sequence[Insert] | None:
        """The template's text for what follows a reply; None for roles that it takes only after all messages."""
        try:
            return self._encoder.suffix([self._message(said) for said in rest], after=path[-1])
        except ValueError:
            return None

    def _message(self, said: Said) -> Message:
        """The message for the chat template. Calls that were not sampled here have the template's own form."""
        if not said.calls:
            return Message(role=said.role, content=said.text)
        calls = [{"name": call.name, "arguments": call.parsed} for call in said.calls]
        return Message(role=said.role, content=self._encoder.template.reply(said.text, calls))

    def _digests(self, tools: Sequence[ToolSchema], messages: Sequence[Said]) -> list[Digest]:
        """One for each beginning of the conversation, the empty one first; tools are part of all."""
        digests = [hashlib.blake2b(repr([tool.function for tool in tools]).encode("utf-8", "replace")).digest()]
        for said in messages:
            text = repr(said.key).encode("utf-8", "replace")
            digests.append(hashlib.blake2b(digests[-1] + text).digest())
        return digests

    def _room(self, prompt: array[int], request: TurnRequest) -> int:
        """Tokens that may be sampled. Raises `BadRequest` in the form by which clients know that a limit is reached."""
        limits = self._limits
        if len(self.threads.turns) >= limits.max_turns:
            raise TooLong(f"the limit of {limits.max_turns} turns is reached", n_tokens=len(prompt), most=0)
        most = self._engine.info.max_tokens
        used = self.threads.n_tokens + self.threads.n_inserted(prompt)
        of_model, of_session = most - len(prompt), limits.max_tokens - used
        if of_model < 1:
            what = f"maximum context length is {most} tokens: these messages have {len(prompt)} tokens"
            raise TooLong(what, n_tokens=len(prompt), most=most - 1)
        if of_session < 1:
            what = f"maximum context length is {limits.max_tokens} tokens: this session has used all its tokens"
            raise TooLong(what, n_tokens=len(prompt), most=0)
        room = min(of_model, of_session)
        return room if request.max_tokens is None else min(room, request.max_tokens)

    async def _complete(
        self, turn: SessionTurn, prompt: array[int], max_tokens: int, stop: tuple[str, ...]
    ) -> Completion:
        thread = turn.thread
        request = Request(
            id=f"{self.name}/{turn.number}",
            token_ids=prompt,
            sampling=replace(self._sampling, max_tokens=max_tokens, stop=stop, stop_token_ids=self._encoder.eos_ids),
            seed=stable_seed("gateway", self._seed, self.name, turn.number),
            cache_key=self._cache_key(thread.number),
            fork_of="" if thread.parent is None else self._cache_key(thread.parent.number),
        )
        try:
            completion = await self._engine.generate(request)
        except asyncio.CancelledError:
            self._engine.abort(request.id)
            raise
        if completion.finish is FinishReason.ABORT:
            raise InfraError(f"request {request.id!r} was aborted")
        if (problem := completion_problem(completion, self._versions)) is not None:
            raise InfraError(f"request {request.id!r} was answered with what cannot be used: {problem}")
        return completion

    def _cache_key(self, thread: int) -> str:
        return f"{self.name}#{thread}"

    def _read(self, request: TurnRequest, turn: SessionTurn, completion: Completion, text: str) -> TurnReply:
        """The reply as a client gets it: thoughts, text and calls apart. Malformed calls stay in the text."""
        id, calls, thoughts = f"{self.name}/{turn.number}", list[SaidCall](), ""
        stop = completion.stop if completion.finish is FinishReason.STOP else None
        text = text.partition(stop)[0] if stop else text
        if request.prompt is None:
            start, end = message_place(text)
            message = text[start:end]
            thoughts = f"{text[:start]}{text[end:]}".replace("<think>", "").replace("</think>", "").strip()
            text, calls = self._calls(message, id) if request.tools else (message, [])
        return TurnReply(
            id=id,
            created=int(time.time()),
            model=request.model,
            text=text.strip() if request.prompt is None else text,
            thoughts=thoughts,
            calls=tuple(calls),
            finish="length" if completion.finish is FinishReason.LENGTH else "calls" if calls else "stop",
            stop=stop,
            prompt_tokens=turn.n_prompt,
            sampled_tokens=len(completion.token_ids),
            cached_tokens=completion.cached_tokens,
        )

    def _calls(self, message: str, id: str) -> tuple[str, list[SaidCall]]:
        """The message's text without its calls, and these."""
        text, calls, done = "", list[SaidCall](), 0
        for start, end, found in located_calls(message, "auto"):
            if isinstance(found, JsonCall):
                arguments = json.dumps(found.arguments, ensure_ascii=False)
                calls.append(SaidCall(id=f"call_{short_id(id)}_{len(calls)}", name=found.name, arguments=arguments))
                text += message[done:start]
                done = end
            else:
                self.malformed_calls += 1
        return text + message[done:], calls
