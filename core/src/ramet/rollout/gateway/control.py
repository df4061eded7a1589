"""The control plane: a program that runs agents leases rollouts, rewards and ends them over HTTP.

It is served with the dialects, below `/ramet/v1/`. Its key, the admin key, does not serve them, and a session's key
does not serve it. An *episode* is a session of it: a rollout of a run, or a session that was opened here.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from ramet.errors import ConfigError, InfraError
from ramet.rollout.agents.command import ProgramFailed, result_of
from ramet.rollout.gateway.episodes import AgentEpisode, Episodes
from ramet.rollout.gateway.messages import BadRequest
from ramet.rollout.gateway.reading import index_of, number_of, text_of
from ramet.rollout.gateway.server import DIALECTS, UNKNOWN_KEY, Gateway, read_object
from ramet.rollout.gateway.threads import SessionTurn
from ramet.types import AgentContext, AgentResult

if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger(__name__)
ROOT = "/ramet/v1"
EPISODE = f"{ROOT}/episodes/{{episode}}"
WAIT_S, MOST_WAIT_S = 30.0, 60.0  # of a lease: by default, at most
LEAST_KEY = 16  # characters
DIALECT = DIALECTS["/v1/chat/completions"]  # the form of errors

Answer: TypeAlias = Callable[["web.Request"], Awaitable[dict[str, Any] | None]]  # None: 204


class ControlPlane:
    """`Gateway(control=…)` serves it."""

    def __init__(
        self,
        admin_key: str | None = None,
        *,
        lease_s: float = 60.0,
        open_session: Callable[[str | None], AgentEpisode] | None = None,
    ) -> None:
        """`admin_key` None: a random one. `lease_s`: how long a leased rollout may be without a sign of life.
        `open_session` makes an episode by its name, None: any, and raises `BadRequest`; without it all sessions are
        rollouts.

        Raises `ConfigError` for a key that is too short.
        """
        if admin_key is not None and len(admin_key) < LEAST_KEY:
            raise ConfigError(f"admin_key has {len(admin_key)} characters; give at least {LEAST_KEY}")
        self.is_drawn = admin_key is None
        self.admin_key = admin_key or f"ramet-admin-{secrets.token_urlsafe(24)}"
        self._lease_s, self._open_session = lease_s, open_session
        self._gateway: Gateway | None = None
        self._episodes = Episodes(lease_s)

    def add_routes(self, app: web.Application, gateway: Gateway) -> None:
        """Serve it with this gateway's sessions."""
        self._gateway, self._episodes = gateway, Episodes(self._lease_s)
        app.router.add_post(f"{ROOT}/episodes", self._handler(self._lease))
        app.router.add_post(f"{ROOT}/sessions", self._handler(self._open))
        app.router.add_post(f"{EPISODE}/alive", self._handler(self._alive))
        app.router.add_post(f"{EPISODE}/end", self._handler(self._end))
        app.router.add_post(f"{EPISODE}/rewards", self._handler(self._reward))
        app.router.add_get(f"{EPISODE}/tree", self._handler(self._tree))

    def log_address(self, url: str) -> None:
        """Log where rollouts are leased, and a key that was drawn."""
        key = self.admin_key if self.is_drawn else "that was given"
        logger.info("agents lease rollouts at %s%s with the admin key %s", url, ROOT, key)

    async def close(self) -> None:
        """Answer all requests that wait for a rollout."""
        await self._episodes.close()

    def add(self, episode: AgentEpisode) -> None:
        """Serve a session that is not a rollout of a run."""
        self._episodes.add(episode)

    async def run(self, task: Mapping[str, Any], ctx: AgentContext) -> AgentResult:
        """Offer a rollout for lease, and return what its agent's end says. Raises `InfraError` for an outage, of the
        agent's or of the machine that ran it.
        """
        assert self._gateway is not None
        offer = {
            "model": ctx.model,
            "task": task,
            "seed": ctx.seed,
            "budget": asdict(ctx.budget),
            "ends_at": time.monotonic() + ctx.budget.seconds,
        }
        session = self._gateway.session(ctx.key)
        return await self._episodes.run(
            AgentEpisode(id=secrets.token_hex(8), key=ctx.key, session=session, offer=offer)
        )

    def _handler(self, answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
        from aiohttp import web  # an extra

        async def handle(request: web.Request) -> web.Response:
            assert self._gateway is not None
            try:
                self._check_key(request)
                body = await answer(request)
            except Exception as error:
                return self._gateway.refusal(DIALECT, error)
            return web.Response(status=204) if body is None else web.json_response(body)

        return handle

    def _check_key(self, request: web.Request) -> None:
        """Raises `BadRequest` for a request without the admin key."""
        key = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(key.encode(), self.admin_key.encode()):
            what = "this is not the admin key" if key else "give the admin key as a bearer token"
            raise BadRequest(f"{what}; a session's key serves only /v1", status=401, code=UNKNOWN_KEY)

    async def _body(self, request: web.Request, *known: str) -> dict[str, Any]:
        """The JSON object of a request, `{}` for an empty body. Raises `BadRequest`, also for unknown fields."""
        assert self._gateway is not None
        raw = await self._gateway.raw(request)
        body = read_object(raw) if raw.strip() else {}
        if unknown := sorted(body.keys() - {*known}):
            allowed = f"allowed: {', '.join(known)}" if known else "this request has none"
            raise BadRequest(f"unknown field: {unknown[0]:.80}; {allowed}", field=unknown[0])
        return body

    def _episode(self, request: web.Request) -> AgentEpisode:
        """The episode of the path, which the request keeps alive. Raises `BadRequest`."""
        episode = self._episodes.get(request.match_info["episode"])
        episode.session.heard_at = time.monotonic()
        return episode

    async def _lease(self, request: web.Request) -> dict[str, Any] | None:
        """Lease the rollout that waits longest."""
        if self._open_session is not None:
            raise BadRequest(f"this gateway has no rollouts of a run; POST {ROOT}/sessions opens a session", status=409)
        wait_s = number_of(await self._body(request, "wait_s"), "wait_s")
        if wait_s is not None and not 0 <= wait_s <= MOST_WAIT_S:
            raise BadRequest(f"wait_s must be a number from 0 to {MOST_WAIT_S:g}, got {wait_s:g}", field="wait_s")
        episode = await self._episodes.lease(
            WAIT_S if wait_s is None else wait_s, lambda: request.transport is not None
        )
        if episode is None:
            return None
        offer = {**episode.offer}
        left = max(0.0, offer.pop("ends_at") - time.monotonic())
        return {**_address(episode, request), **offer, "budget": {**offer["budget"], "seconds": round(left, 3)}}

    async def _open(self, request: web.Request) -> dict[str, Any]:
        """Open a further session."""
        if self._open_session is None:
            raise BadRequest(f"the run opens all sessions; POST {ROOT}/episodes leases a rollout", status=409)
        name = (await self._body(request, "name")).get("name")
        episode = self._open_session(None if name is None else text_of(name, "name"))
        self.add(episode)
        return {**_address(episode, request), **episode.offer}

    async def _alive(self, request: web.Request) -> dict[str, Any]:
        await self._body(request)
        return {"episode": self._episode(request).id, "lease_s": self._lease_s}

    async def _end(self, request: web.Request) -> dict[str, Any]:
        """End an episode. Its session is refused from now on."""
        body = await self._body(request, "answer", "reward", "info", "status")
        episode = self._episode(request)
        number_of(body, "reward")
        try:
            result = result_of(body)
        except ProgramFailed as error:
            raise BadRequest(str(error)) from error
        except InfraError as error:
            episode.result.set_exception(error)
            episode.result.exception()  # looked at, so that asyncio does not report a session that no rollout waits for
        else:
            episode.result.set_result(result)
        await episode.session.drain()
        if self._open_session is not None:  # a rollout's scheduler releases it
            episode.session.release()
        return {"episode": episode.id, "turns": len(episode.session.threads.turns)}

    async def _reward(self, request: web.Request) -> dict[str, Any]:
        """Add a reward of the rollout, of a turn, or of a sampled token."""
        body = await self._body(request, "reward", "turn", "token")
        session = self._episode(request).session
        if (value := number_of(body, "reward")) is None:
            raise BadRequest("reward is missing: give a number", field="reward")
        number, token = index_of(body, "turn"), index_of(body, "token")
        if number is None:
            if token is not None:
                raise BadRequest("turn is missing: a token is one of a turn", field="turn")
            return {"reward": session.rewards.add(value)}
        turn = _turn(session.threads.turns, number)
        if token is not None and token >= turn.n_sampled:
            there = f"sampled tokens 0 to {turn.n_sampled - 1}" if turn.n_sampled else "no sampled tokens"
            raise BadRequest(f"token {token}: turn {number} has {there}", field="token")
        return {"reward": session.rewards.add(value, turn, token)}

    async def _tree(self, request: web.Request) -> dict[str, Any]:
        """The threads and the turns of an episode as they are."""
        episode = self._episode(request)
        threads, rewards = episode.session.threads, episode.session.rewards
        return {
            "episode": episode.id,
            "reward": rewards.rollout,
            "threads": [
                {
                    "number": thread.number,
                    "parent": None if thread.parent is None else thread.parent.number,
                    "n_shared": thread.n_shared,
                }
                for thread in threads.threads
            ],
            "turns": [
                {
                    **_shown(turn),
                    "reward": rewards.turns.get(turn.number),
                    "token_rewards": rewards.tokens.get(turn.number, {}),
                }
                for turn in threads.turns
            ],
        }


def _address(episode: AgentEpisode, request: web.Request) -> dict[str, Any]:
    """The episode's session: its address is the one by which the client reached this server."""
    return {"episode": episode.id, "base_url": f"{request.scheme}://{request.host}/v1", "key": episode.key}


def _turn(turns: list[SessionTurn], number: int) -> SessionTurn:
    """The turn with this number. Raises `BadRequest` for one that is not there, or not complete yet."""
    if number >= len(turns):
        there = f"there are turns 0 to {len(turns) - 1}" if turns else "there is no turn yet"
        raise BadRequest(f"turn {number}: {there}", field="turn")
    if not turns[number].is_over:
        raise BadRequest(f"turn {number} is being sampled: reward it once its reply is there", status=409, field="turn")
    return turns[number]


def _shown(turn: SessionTurn) -> dict[str, Any]:
    """A turn for the tree. Text and tokens are those that were sampled in it."""
    sampled, reply = [segment for segment in turn.segments if segment.is_sampled], turn.reply
    return {
        "number": turn.number,
        "thread": turn.thread,
        "is_over": turn.is_over,
        "tokens": [token for segment in sampled for token in segment.token_ids],
        "text": "".join(segment.text for segment in sampled),
        "calls": [] if reply is None else [asdict(call) for call in reply.calls],
    }
