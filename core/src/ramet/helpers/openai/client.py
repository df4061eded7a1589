"""Requests to OpenAI-compatible servers: several at a time, retried, with a deadline, counted, and cached if asked for.

Failures are infrastructure failures (`InfraError`): the caller masks the rollout or leaves the answer unjudged, and
never scores it 0.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakValueDictionary

from ramet.errors import ConfigError, InfraError
from ramet.helpers.http import HttpClient, HttpFailure
from ramet.helpers.openai.cache import ReplyCache, request_key
from ramet.helpers.openai.exchanges import answered, is_replaying
from ramet.helpers.openai.options import ChatReply, OpenAIOptions, OpenAIUsage, RequestRefused
from ramet.helpers.openai.responses import chat_reply, has_text, text_of, tokens
from ramet.helpers.per_loop import PerLoop
from ramet.plugins.instance_keys import instance_key
from ramet.types import Limiter, Message, Services

FIRST_WAIT_S = 0.5  # before the second attempt; doubled with each, less up to a half by chance
LONGEST_WAIT_S = 30.0
PATIENCE_S = 60.0  # a longer Retry-After is handed to the caller
REFUSED = {400, 413, 422}
MODELS_S = 30.0


class OpenAIClient:
    """One per component and process. `name` is its key in messages, as `rewards.judge.params.server`; for a named
    instance (`rewards.second.use=judge`) they have that name.
    """

    def __init__(self, options: OpenAIOptions, name: str) -> None:
        self.options, self.name = options, instance_key(name)
        self._limit = name  # instances and benchmarks that ask one server share its limit
        self.usage = OpenAIUsage()
        self._servers = Servers(options.urls)
        self._cache: ReplyCache | None = None
        self._limiter: Limiter | None = None
        self._connections = PerLoop(lambda: _Connections(options))
        self._model = options.model
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def start(self, services: Services, *, cache: Path | None = None) -> None:
        """Optional, before the first request: the run's shared limit, and the file that keeps replies."""
        if self.options.per_s is not None:
            servers = ", ".join(map(without_password, self.options.urls))  # two judges have one name
            self._limiter = services.limiter(f"{self._limit} ({servers})", self.options.per_s)
        self._cache = None if cache is None else ReplyCache(cache)

    async def check(self) -> None:
        """Open the file, and ask every server for its models. Raises `ConfigError` for errors of the configuration
        (file, address, key, model), otherwise `InfraError`. A replay asks nothing.
        """
        if is_replaying():
            return
        try:
            if self._cache is not None:
                await self._cache.get("")
            for server in self._servers.all:
                await self._offered(server)
            await self._chosen_model()
        except (ConfigError, InfraError):
            await self.aclose()
            raise

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        deadline_s: float | None = None,
        cached: bool = False,
        affinity: str = "",
        check: Callable[[str], bool] | None = None,
        prompt: str = "",
        **parameters: Any,
    ) -> ChatReply:
        """One chat completion. `parameters` are keys of the request (temperature, max_tokens, seed, …).

        `prompt` names the prompt with its version, for the record of what judges were asked; it is not sent.

        `cached`: an equal request is answered from the file, if `start` named one. A text that `check` refuses is not
        kept; the server is asked once more, and its second reply is returned. `deadline_s` bounds all attempts and
        waits together. Raises `InfraError`; `RequestRefused` if no attempt can succeed.
        """
        ask = partial(self._chat, messages, parameters, check, deadline_s=deadline_s, cached=cached, affinity=affinity)
        return await answered(ask, client=self.name, prompt=prompt, messages=messages, parameters=parameters)

    async def _chat(
        self,
        messages: Sequence[Message],
        parameters: Mapping[str, Any],
        check: Callable[[str], bool] | None,
        *,
        deadline_s: float | None,
        cached: bool,
        affinity: str,
    ) -> ChatReply:
        body = {"messages": [{"role": m.role, "content": m.content} for m in messages], **parameters}
        accept = None if check is None else (lambda reply: check(text_of(reply)))
        options: dict[str, Any] = {"cached": cached, "deadline_s": deadline_s, "affinity": affinity, "accept": accept}
        reply, from_cache = await self._ask("/chat/completions", body, **options)
        if accept is not None and not accept(reply):
            reply, from_cache = await self._ask("/chat/completions", body, **options)
        return chat_reply(reply, cached=from_cache, accepted=accept is None or accept(reply))

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        deadline_s: float | None = None,
        cached: bool = False,
        affinity: str = "",
    ) -> dict[str, Any]:
        """A request to any path below the base, as `/completions`; the reply as it is. Raises as `chat`.

        The model is added if the body names none.
        """
        reply, _ = await self._ask(path, body, cached=cached, deadline_s=deadline_s, affinity=affinity)
        return reply

    async def aclose(self) -> None:
        """Close connections and file. The client may be used again."""
        await self._connections.aclose()
        if self._cache is not None:
            await self._cache.aclose()
            self._cache = ReplyCache(self._cache.path)

    async def _ask(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        cached: bool,
        deadline_s: float | None,
        affinity: str,
        accept: Callable[[dict[str, Any]], bool] | None = None,
    ) -> tuple[dict[str, Any], bool]:
        """The reply, and whether the cache gave it."""
        last: list[str] = []  # why the newest attempt failed
        try:
            async with asyncio.timeout(deadline_s) as deadline:
                request = {"model": await self._chosen_model(), **body}
                if not cached or self._cache is None:
                    return await self._request(path, request, affinity, last), False
                key = request_key(path, request)
                async with self._asking.setdefault(key, asyncio.Lock()):
                    stored_reply = await self._cache.get(key)
                    if stored_reply is not None and has_text(path, stored_reply):
                        self.usage.cached += 1
                        return stored_reply, True
                    reply = await self._request(path, request, affinity, last)
                    if accept is None or accept(reply):
                        await self._cache.put(key, reply)
                    return reply, False
        except TimeoutError as error:
            self.usage.failures += 1
            if not deadline.expired():
                raise
            reason = f"; {last[-1]}" if last else ""
            raise InfraError(f"{self.name}: no reply within {deadline_s:g} s{reason}") from error
        except InfraError:
            self.usage.failures += 1
            raise

    async def _request(self, path: str, body: Mapping[str, Any], affinity: str, last: list[str]) -> dict[str, Any]:
        self.usage.requests += 1
        tried: set[Server] = set()
        for attempt in range(self.options.retries + 1):
            server = self._servers.choose(affinity, tried)
            try:
                reply = await self._attempt(server, path, body)
                if not has_text(path, reply):  # as good as none
                    who = without_password(server.url + path)
                    raise HttpFailure(f"{who}: the reply has no choices[0].message.content")
            except HttpFailure as error:
                last.append(str(error))
                if error.status in REFUSED:
                    server.answered()  # it is well: another request may be one that it takes
                else:
                    server.failed()
                if not error.again or attempt == self.options.retries:
                    raise self._final(error, attempt + 1) from error
                tried.add(server)
                if len(tried) == len(self._servers.all) or error.retry_after_s is not None:
                    tried.clear()
                    await self._wait(error, attempt)
            else:
                server.answered()
                self._count(reply)
                return reply
        raise AssertionError("the last attempt raises")

    async def _attempt(self, server: Server, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        connections = self._connections.get()
        if self._limiter is not None:
            await self._limiter.wait()
        async with connections.slots:
            if self.options.max_requests is not None and self.usage.attempts >= self.options.max_requests:
                raise HttpFailure(f"max_requests={self.options.max_requests} is used up", again=False)
            self.usage.attempts += 1
            server.in_flight += 1
            began = time.monotonic()
            try:
                return await connections.send(server.url + path, body, self.options.timeout_s)
            finally:
                server.in_flight -= 1
                self.usage.wait_s += time.monotonic() - began

    async def _wait(self, error: HttpFailure, attempt: int) -> None:
        if error.retry_after_s is not None:
            if error.retry_after_s > PATIENCE_S:
                raise InfraError(f"{self.name}: {error}", retry_after_s=error.retry_after_s)
            if self._limiter is not None:
                await self._limiter.pause(error.retry_after_s, reason=str(error))
        backoff = min(FIRST_WAIT_S * 2**attempt, LONGEST_WAIT_S) * random.uniform(0.5, 1.0)
        await asyncio.sleep(max(backoff, error.retry_after_s or 0.0))

    def _final(self, error: HttpFailure, attempts: int) -> InfraError:
        times = "" if attempts == 1 else f" ({attempts} attempts)"
        if error.status in REFUSED:
            return RequestRefused(f"{self.name}: {error}{times}", status=error.status or 400)
        return InfraError(f"{self.name}: {error}{times}", retry_after_s=error.retry_after_s)

    def _count(self, reply: Mapping[str, Any]) -> None:
        tokens_in, tokens_out = tokens(reply)
        self.usage.input_tokens += tokens_in
        self.usage.output_tokens += tokens_out
        spent = tokens_in * self.options.input_price + tokens_out * self.options.output_price
        self.usage.dollars += spent / 1e6

    async def _chosen_model(self) -> str:
        if self._model is not None:
            return self._model
        async with self._asking.setdefault("", asyncio.Lock()):  # all first requests together ask once
            if self._model is None:
                self._model = await self._only_model()
        return self._model

    async def _only_model(self) -> str:
        """Return the model of the server that answers first, which must offer exactly one."""
        offered = await self._offered(self._servers.choose())
        if len(offered) != 1:
            raise ConfigError(
                f"{self.name}.model is null, and the server offers {', '.join(offered) or 'no model'}; allowed: "
                "the name of a model that it offers"
            )
        return offered[0]

    async def _offered(self, server: Server) -> list[str]:
        """The models of a server, the chosen one among them. A server that does not list models is believed."""
        try:
            reply = await self._connections.get().send(
                f"{server.url}/models", None, min(self.options.timeout_s, MODELS_S)
            )
        except HttpFailure as error:
            wrong = {401: "the key is refused", 403: "the key is refused", 404: "there is no such address"}
            if error.status == 404 and self._model is not None:
                return []
            if error.status in wrong:
                name = self.options.key_variable
                where = f"from the environment variable {name}" if os.environ.get(name) else f"{name} is not set"
                hint = "" if error.status == 404 else f" ({where})"
                raise ConfigError(f"{self.name}: {wrong[error.status]}{hint}: {error}") from error
            hint = "" if error.status else f"; start a server there, or set {self.name}.urls=[http://HOST:PORT/v1]"
            raise InfraError(f"{self.name}: {error}{hint}") from error
        listed = reply.get("data")
        offered = [str(model["id"]) for model in listed if isinstance(model, dict) and "id" in model] if listed else []
        if self._model is not None and offered and self._model not in offered:
            url, names = without_password(server.url), ", ".join(sorted(offered)[:20])
            raise ConfigError(f"{self.name}.model is {self._model!r}; {url} offers: {names}")
        return offered


class _Connections(HttpClient):
    """Connections of one event loop, and places for the requests that use them."""

    def __init__(self, options: OpenAIOptions) -> None:
        key = os.environ.get(options.key_variable, "").strip()  # of a file, a key often ends in a new line
        super().__init__(
            secret=key,
            headers={"Authorization": f"Bearer {key}"} if key else None,
            redirects=True,
            environment=not all(map(_is_this_machine, options.urls)),
            cookies=True,
            limit=options.concurrency,
        )
        self.slots = asyncio.Semaphore(options.concurrency)

    async def send(self, url: str, body: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        """POST with a body, otherwise GET. Raises `HttpFailure`."""
        method = "GET" if body is None else "POST"
        return await self.ask(method, url, who=without_password(url), json=body, timeout_s=timeout_s)


def without_password(url: str) -> str:
    """Return an address as messages show it: without a name and a password in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


MAX_REST_S = 30.0


@dataclass(slots=True, eq=False)
class Server:
    """`url` is the base. A server that failed rests: twice as long each time, until it answers again."""

    url: str
    in_flight: int = 0
    failures: int = 0  # in a row
    resting_until: float = 0.0  # of the monotonic clock

    def answered(self) -> None:
        self.failures, self.resting_until = 0, 0.0

    def failed(self) -> None:
        self.resting_until = time.monotonic() + min(0.5 * 2**self.failures, MAX_REST_S)
        self.failures = min(self.failures + 1, 16)


class Servers:
    """Chooses which of several servers gets a request."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.all = [Server(url) for url in urls]

    def choose(self, affinity: str = "", tried: Collection[Server] = ()) -> Server:
        """Return a server that neither rests nor was tried; without one, the one that will have rested first.

        Requests of one `affinity` go to one server while it works (rendezvous hashing, so that others keep their
        server when one is lost); without it, to the least busy one.
        """
        now = time.monotonic()
        ready = [server for server in self.all if server.resting_until <= now and server not in tried]
        if not ready:
            return min(
                (server for server in self.all if server not in tried), key=_rest, default=min(self.all, key=_rest)
            )
        if affinity and len(ready) > 1:
            return max(ready, key=lambda server: hashlib.sha256(f"{affinity}\n{server.url}".encode()).digest())
        return min(ready, key=lambda server: server.in_flight)


def _rest(server: Server) -> float:
    return server.resting_until
