"""The gateway's HTTP server: requests of agents in each dialect, to the session whose key they carry.

Bound to the loopback unless configured otherwise. A key is a session; a client that cannot set one uses the path
`/s/KEY/v1/…`. Replies are sent when the turn is complete: as one body, or as the dialect's own events, with a comment
every ten seconds before.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ramet.errors import ConfigError, InfraError
from ramet.io.json_values import MAX_NESTING, json_fault, too_deep
from ramet.rollout.gateway import anthropic, chat, completions, responses
from ramet.rollout.gateway.kept import KeptResponses
from ramet.rollout.gateway.messages import BadRequest, TurnReply, TurnRequest
from ramet.rollout.gateway.session import AgentSession

if TYPE_CHECKING:
    from aiohttp import web

    from ramet.rollout.gateway.control import ControlPlane

logger = logging.getLogger(__name__)
MAX_BODY = 32 << 20  # bytes of a request: 128k tokens take about half a megabyte
CLOSE_S = 2.0  # for open connections when the gateway closes: also for one whose request has not come yet
KEEP_ALIVE_S = 10.0
UNKNOWN_KEY = "invalid_api_key"

Keep: TypeAlias = Callable[[TurnReply, Mapping[str, Any], KeptResponses], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one kind of client writes its requests and reads its replies."""

    read: Callable[[Mapping[str, Any]], TurnRequest]
    write: Callable[[TurnReply, Mapping[str, Any]], dict[str, Any]]
    events: Callable[[TurnReply, Mapping[str, Any]], Iterator[bytes]]
    error: Callable[[BadRequest | InfraError], dict[str, Any]]
    keep_alive: bytes = b": waiting\n\n"
    # Where requests may refer to earlier replies: the body without such references, and what keeps a reply for later.
    resolve: Callable[[Mapping[str, Any], KeptResponses], dict[str, Any]] | None = None
    keep: Keep | None = None


DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": Dialect(read=chat.read, write=chat.write, events=chat.events, error=chat.error),
    "/v1/responses": Dialect(
        read=responses.read,
        write=responses.write,
        events=responses.events,
        error=chat.error,
        resolve=responses.resolve,
        keep=responses.keep,
    ),
    "/v1/messages": Dialect(
        read=anthropic.read,
        write=anthropic.write,
        events=anthropic.events,
        error=anthropic.error,
        keep_alive=anthropic.PING,
    ),
    "/v1/completions": Dialect(
        read=completions.read, write=completions.write, events=completions.events, error=chat.error
    ),
}


class Gateway:
    """`async with Gateway(…) as gateway`: serves sessions at `gateway.url` until the block ends."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        model: str = "policy",
        control: ControlPlane | None = None,
    ) -> None:
        """`port` 0: any free one. `model` is the name under which the policy is listed. `control` is served too.

        Raises `ConfigError` without aiohttp.
        """
        try:
            from aiohttp import web
        except ImportError as error:
            raise ConfigError("the gateway needs the package aiohttp: pip install 'ramet[openai]'") from error
        self._web = web
        self._host, self._port, self.model, self._control = host, port, model, control
        self._sessions: dict[str, AgentSession] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Gateway:
        """Raises `ConfigError` if the address cannot be bound."""
        app = self._web.Application(client_max_size=MAX_BODY)
        for prefix in ("", "/s/{session}"):
            app.router.add_get(f"{prefix}/v1/models", self._models)
            for path in DIALECTS:
                app.router.add_post(f"{prefix}{path}", self._turn)
            app.router.add_get(f"{prefix}/v1/responses/{{response}}", self._response)
            app.router.add_post(f"{prefix}/v1/messages/count_tokens", self._count)
        if self._control is not None:
            self._control.add_routes(app, self)
        app.router.add_route("*", "/{path:.*}", self._unknown)
        self._runner = self._web.AppRunner(app, access_log=None, auto_decompress=False, shutdown_timeout=CLOSE_S)
        await self._runner.setup()
        site = self._web.TCPSite(self._runner, self._host, self._port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(f"gateway: cannot listen at {self._host}:{self._port}: {error.strerror}") from error
        port = self._runner.addresses[0][1]
        self.url = f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._control is not None:
            await self._control.close()
        for key in list(self._sessions):
            self.close(key)
        if self._runner is not None:
            await self._runner.cleanup()

    def open(self, session: AgentSession) -> str:
        """Serve the session; returns its key."""
        key = f"ramet-{secrets.token_urlsafe(24)}"
        self._sessions[key] = session
        return key

    def close(self, key: str) -> AgentSession:
        """End the session and refuse its key from now on."""
        session = self._sessions.pop(key)
        session.end()
        return session

    def session(self, key: str) -> AgentSession:
        """Return the session with this key. Raises `KeyError`."""
        return self._sessions[key]

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._session(request)
        except BadRequest as error:
            return self.refusal(_dialect_of(request), error)
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "ramet"}
        return self._web.json_response({"object": "list", "data": [model]})

    async def _unknown(self, request: web.Request) -> web.Response:
        """The refusal of a path that is not served, or not with this method."""
        resources = request.app.router.resources()
        allowed = sorted({method for resource in resources for method in (await resource.resolve(request))[1]} - {"*"})
        if not allowed:
            paths = ", ".join([*DIALECTS, "/v1/models"])
            error = BadRequest(f"nothing is served at this path: the paths are {paths}", status=404)
            return self.refusal(_dialect_of(request), error)
        error = BadRequest(f"{request.method} is not supported here, only {', '.join(allowed)}", status=405)
        response = self.refusal(_dialect_of(request), error)
        response.headers["Allow"] = ", ".join(allowed)
        return response

    async def _response(self, request: web.Request) -> web.Response:
        """An earlier reply of `/v1/responses`."""
        try:
            if "stream" in request.query:
                raise BadRequest("stream is not supported for an earlier reply", field="stream")
            kept = self._session(request).kept.response(request.match_info["response"], "response_id")
        except BadRequest as error:
            return self.refusal(DIALECTS["/v1/responses"], error)
        return self._web.json_response(kept.body)

    async def _turn(self, request: web.Request) -> web.StreamResponse:
        dialect = _dialect_of(request)
        try:
            session = self._session(request)
            raw = await self.raw(request)
            body = read_object(raw)
            if dialect.resolve is not None:
                body = dialect.resolve(body, session.kept)
            turn = dialect.read(body)
            reply = asyncio.create_task(_reply(session, turn, request, raw))
            if dialect.keep is not None:
                reply = asyncio.create_task(_kept(reply, dialect.keep, body, session.kept))
            if not turn.stream:
                return self._web.json_response(dialect.write(await reply, body))
            return await self._stream(request, dialect, body, reply)
        except Exception as error:
            return self.refusal(dialect, error)

    async def _count(self, request: web.Request) -> web.Response:
        """The tokens that a request to `/v1/messages` would have as its prompt."""
        try:
            session = self._session(request)
            turn = anthropic.read_count(read_object(await self.raw(request)))
            return self._web.json_response({"input_tokens": session.count(turn)})
        except Exception as error:
            return self.refusal(DIALECTS["/v1/messages"], error)

    def refusal(self, dialect: Dialect, error: Exception) -> web.Response:
        """Return the error in the dialect's form. Of a mistake of Ramet's the log has the traceback."""
        if isinstance(error, InfraError):
            logger.warning("gateway: %s", error)
            return self._web.json_response(dialect.error(error), status=503)
        if not isinstance(error, BadRequest):
            logger.error("gateway: a request failed", exc_info=error)
            error = BadRequest(f"{type(error).__name__}: {error}", status=500)
        return self._web.json_response(dialect.error(error), status=error.status)

    async def _stream(
        self, request: web.Request, dialect: Dialect, body: Mapping[str, Any], reply: asyncio.Task[TurnReply]
    ) -> web.StreamResponse:
        """The events of a reply; an error that comes before the first comment is a plain response."""
        await asyncio.wait([reply], timeout=KEEP_ALIVE_S)
        if reply.done():
            reply.result()  # raises
        response = self._web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        try:
            await self._send(response, request, dialect, body, reply)
        except ConnectionResetError:  # the client has gone; its turn stays, for a retry
            with contextlib.suppress(BadRequest, InfraError):
                await reply
        return response

    async def _send(
        self,
        response: web.StreamResponse,
        request: web.Request,
        dialect: Dialect,
        body: Mapping[str, Any],
        reply: asyncio.Task[TurnReply],
    ) -> None:
        await response.prepare(request)
        while not reply.done():
            await response.write(dialect.keep_alive)
            await asyncio.wait([reply], timeout=KEEP_ALIVE_S)
        try:
            events = dialect.events(await reply, body)
        except (BadRequest, InfraError) as error:  # the status has been sent
            logger.warning("gateway: %s", error)
            events = iter([f"event: error\ndata: {json.dumps(dialect.error(error))}\n\n".encode()])
        for event in events:
            await response.write(event)
        await response.write_eof()

    def _session(self, request: web.Request) -> AgentSession:
        """The session whose key the request carries. Raises `BadRequest`."""
        headers = request.headers
        bearer = headers.get("Authorization", "").removeprefix("Bearer ").strip()
        key = request.match_info.get("session") or bearer or headers.get("x-api-key", "")
        session = self._sessions.get(key) if key else None
        if session is None:
            what = "no session has this key: it is wrong, or the session has ended"
            how = "give the session's key as a bearer token or as x-api-key"
            raise BadRequest(what if key else how, status=401, code=UNKNOWN_KEY)
        session.heard_at = time.monotonic()
        return session

    async def raw(self, request: web.Request) -> bytes:
        """Return the body. Raises `BadRequest` for one that is too large, compressed or cut off."""
        if (coding := request.headers.get("Content-Encoding", "identity")) != "identity":
            raise BadRequest(f"the body must not be compressed, got Content-Encoding {coding!r:.80}", status=415)
        try:
            return await request.read()
        except self._web.HTTPRequestEntityTooLarge as error:
            raise BadRequest(f"the body has more than {MAX_BODY >> 20} MiB", status=413) from error
        except ConnectionError as error:
            raise BadRequest("the connection was closed before the end of the body") from error


def _dialect_of(request: web.Request) -> Dialect:
    """The dialect in which a client reads errors: by the path, elsewhere by a header that clients of Anthropic send."""
    path = request.path[request.path.rfind("/v1/") :]
    is_anthropic = path.startswith("/v1/messages/") or "anthropic-version" in request.headers
    return DIALECTS.get(path) or DIALECTS["/v1/messages" if is_anthropic else "/v1/chat/completions"]


def read_object(raw: bytes) -> dict[str, Any]:
    """Return the body. Raises `BadRequest` for what is not a JSON object, or what tokenizers do not read."""
    try:
        body = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest(f"the body must be a JSON object, got {type(body).__name__}")
    if too_deep(body):
        raise BadRequest(f"the body is nested more than {MAX_NESTING} levels deep")
    if (b"\\ud" in raw or b"\\uD" in raw) and (fault := json_fault(body)) is not None:
        raise BadRequest(f"the body has {fault}")
    return body


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


async def _kept(
    running: asyncio.Task[TurnReply], keep: Keep, body: Mapping[str, Any], kept: KeptResponses
) -> TurnReply:
    """The reply, kept before it is sent: its client may have gone."""
    reply = await running
    keep(reply, body, kept)
    return reply


async def _reply(session: AgentSession, turn: TurnRequest, request: web.Request, raw: bytes) -> TurnReply:
    """The session's reply; a retry gets the reply to the request that it repeats.

    Clients of OpenAI and Anthropic say in a header how often they have tried; others may give a key. Equal bodies
    without either are different turns: an agent may sample several at once. So are different bodies with one key.
    """
    headers, digest = request.headers, hashlib.blake2b(raw).hexdigest()
    if (key := headers.get("Idempotency-Key")) is not None:
        return await session.reply(turn, name=f"key:{key}:{digest}", again=True)
    tried = headers.get("x-stainless-retry-count", "0")
    return await session.reply(turn, name=digest, again=tried != "0")
