"""The control plane: what each key serves, what is refused and how, leases, rewards and the tree."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from core.tests.rollout.gateway.conftest import Recorded, run, settings_of

from ramet.models.encoder import Encoder
from ramet.play.gateway import Sessions
from ramet.rollout.gateway.control import ControlPlane
from ramet.rollout.gateway.server import Gateway
from ramet.rollout.gateway.session import AgentSession, SessionLimits
from ramet.testing.doubles import Reply, ScriptedEngine
from ramet.types import AgentBudget, AgentContext

ADMIN = "an-admin-key-of-tests"
LIMITS = SessionLimits(max_turns=20, max_tokens=2000)


class Client:
    """Requests to a gateway with sessions that its control plane opens."""

    def __init__(self, url: str, http: Any, sessions: Sessions | None, engine: Recorded, control: ControlPlane) -> None:
        self.url, self.http, self.sessions, self.engine, self.control = url, http, sessions, engine, control

    async def ask(self, method: str, path: str, body: Any = None, key: str = ADMIN) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"}
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        async with self.http.request(method, self.url + path, data=raw, headers=headers) as response:
            return response.status, json.loads(await response.text() or "null")

    async def post(self, path: str, body: Any = None, key: str = ADMIN) -> tuple[int, Any]:
        return await self.ask("POST", f"/ramet/v1{path}", body, key)

    async def chat(self, key: str, text: str = "?") -> tuple[int, Any]:
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        return await self.ask("POST", "/v1/chat/completions", body, key)


@asynccontextmanager
async def serve(encoder: Encoder, *, of_run: bool = False, lease_s: float = 60.0) -> AsyncIterator[Client]:
    from aiohttp import ClientSession

    engine = Recorded(ScriptedEngine(lambda task, path, turn: f"reply {turn} of {path}", encoder))
    sessions = Sessions(settings_of(engine, encoder, LIMITS))
    control = ControlPlane(ADMIN, lease_s=lease_s, open_session=None if of_run else sessions.open)
    async with ClientSession() as http, Gateway(control=control) as gateway:
        sessions.gateway = gateway
        yield Client(gateway.url, http, sessions, engine, control)


def test_sessions_and_their_keys_do_not_cross(encoder: Encoder) -> None:
    async def work() -> None:
        async with serve(encoder) as client:
            (_, first), (_, second) = await client.post("/sessions"), await client.post("/sessions", {"name": "b"})
            assert second["episode"] == "b" and first["key"] != second["key"]
            assert first["base_url"] == f"{client.url}/v1"
            assert (await client.chat(first["key"]))[0] == 200
            (_, tree), (_, other) = [
                await client.ask("GET", f"/ramet/v1/episodes/{name}/tree") for name in (first["episode"], "b")
            ]
            assert len(tree["turns"]) == 1 and other["turns"] == []
            for key in (first["key"], "", "ramet-admin-x"):
                status, body = await client.post("/sessions", key=key)
                assert status == 401 and "admin key" in body["error"]["message"]
            status, body = await client.chat(ADMIN)
            assert status == 401
            assert (await client.ask("POST", f"/s/{ADMIN}/v1/chat/completions", {}, ""))[0] == 401
            assert (await client.post("/episodes/b/end", {"answer": "x"}))[0] == 200
            assert (await client.chat(second["key"]))[0] == 404
            assert (await client.chat(first["key"]))[0] == 200

    run(work)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/sessions", {"name": "0a"}, 400, "must begin with a letter"),
        ("/sessions", {"name": 3}, 400, "name must be a text"),
        ("/sessions", {"name": "taken"}, 409, "'taken' already"),
        ("/sessions", {"nam": "x"}, 400, "unknown field: nam; allowed: name"),
        ("/sessions", b"[", 400, "not JSON"),
        ("/sessions", [], 400, "must be a JSON object"),
        ("/episodes", {}, 409, "POST /ramet/v1/sessions"),
        ("/episodes/none/alive", None, 404, "there is no episode 'none'"),
        ("/episodes/taken/rewards", {}, 400, "reward is missing"),
        ("/episodes/taken/rewards", {"reward": True}, 400, "reward must be a finite number"),
        ("/episodes/taken/rewards", b'{"reward": 1e999}', 400, "reward must be a finite number, got inf"),
        ("/episodes/taken/rewards", b'{"reward": NaN}', 400, "NaN is not a number of JSON"),
        ("/episodes/taken/rewards", {"reward": 10**400}, 400, "reward must be a finite number"),
        ("/episodes/taken/rewards", {"reward": 1, "turn": 2}, 400, "turn 2: there are turns 0 to 0"),
        ("/episodes/taken/rewards", {"reward": 1, "turn": -1}, 400, "turn must be an integer of at least 0"),
        ("/episodes/taken/rewards", {"reward": 1, "turn": 0, "token": 99}, 400, "turn 0 has sampled tokens 0 to "),
        ("/episodes/taken/rewards", {"reward": 1, "token": 0}, 400, "turn is missing"),
        ("/episodes/empty/rewards", {"reward": 1, "turn": 0}, 400, "there is no turn yet"),
        ("/episodes/taken/end", {"status": "gone"}, 400, "allowed: done, failed, infra"),
        ("/episodes/taken/end", {"answer": 3}, 400, "answer of the result is 3"),
        ("/episodes/taken/end", b'{"reward": -1e999}', 400, "reward must be a finite number"),
        ("/episodes/taken/end", {"anwser": "x"}, 400, "unknown field: anwser"),
    ],
)
def test_bad_requests_are_named(encoder: Encoder, path: str, body: Any, status: int, message: str) -> None:
    async def work() -> None:
        async with serve(encoder) as client:
            _, session = await client.post("/sessions", {"name": "taken"})
            await client.post("/sessions", {"name": "empty"})
            await client.chat(session["key"])
            got, error = await client.post(path, body)
            assert got == status and message in error["error"]["message"], error
            assert (await client.post("/episodes/taken/alive"))[0] == 200  # nothing was ended

    run(work)


def test_rewards_add_up_and_the_tree_shows_them(encoder: Encoder) -> None:
    async def work() -> None:
        async with serve(encoder) as client:
            _, session = await client.post("/sessions")
            await client.chat(session["key"])
            await client.chat(session["key"], "another conversation")
            path = f"/episodes/{session['episode']}"
            for body, total in (
                ({"reward": 1}, 1.0),
                ({"reward": 0.5}, 1.5),
                ({"reward": 2, "turn": 1}, 2.0),
                ({"reward": -1, "turn": 1}, 1.0),
                ({"reward": 3, "turn": 1, "token": 2}, 3.0),
            ):
                assert await client.post(f"{path}/rewards", body) == (200, {"reward": total})
            assert (await client.post(f"{path}/rewards", {"reward": 3e38}))[0] == 200
            status, error = await client.post(f"{path}/rewards", {"reward": 3e38})
            assert status == 400 and "would be 6e+38, which is not finite as float32" in error["error"]["message"]
            _, tree = await client.ask("GET", f"/ramet/v1{path}/tree")
            first, second = tree["turns"]
            assert [turn["number"] for turn in tree["turns"]] == [0, 1] and second["thread"] == 1
            assert tree["threads"][1]["parent"] == 0
            assert [first["tokens"], second["tokens"]] == [sampled for _, sampled in client.engine.seen]
            assert first["text"] == "reply 0 of 0" and encoder.decode(first["tokens"]).startswith(first["text"])
            assert (second["reward"], second["token_rewards"]) == (1.0, {"2": 3.0}) and first["reward"] is None
            assert second["is_over"] and second["calls"] == []
            assert (await client.post(f"{path}/end", {"reward": 1, "info": {"a": 1}}))[1]["turns"] == 2
            assert (await client.post(f"{path}/end"))[0] == (await client.post(f"{path}/rewards", {"reward": 1}))[0]

    run(work)


def test_a_session_that_ends_with_an_outage_is_not_an_error_of_the_gateway(
    encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serve(encoder) as client:
            _, session = await client.post("/sessions")
            assert (await client.post(f"/episodes/{session['episode']}/end", {"status": "infra"}))[0] == 200

    gc.collect()  # what earlier tests left
    caplog.clear()
    run(work)
    gc.collect()
    assert not caplog.records


def context(client: Client, key: str, seconds: float = 60.0) -> AgentContext:
    budget = AgentBudget(turns=3, tokens=100, tool_calls=2, seconds=seconds)
    return AgentContext(
        base_url=f"{client.url}/v1", key=key, model="policy", budget=budget, folder=Path("unused"), seed=7
    )


def test_a_lease_waits_for_a_rollout(encoder: Encoder) -> None:
    async def work() -> None:
        async with serve(encoder, of_run=True) as client:
            assert await client.post("/episodes", {"wait_s": 0}) == (204, None)
            for wait_s in (61, -1, "5"):
                assert (await client.post("/episodes", {"wait_s": wait_s}))[0] == 400
            assert (await client.post("/sessions"))[0] == 409
            waiting = asyncio.create_task(client.post("/episodes", {"wait_s": 20}))
            gone = asyncio.create_task(client.post("/episodes", {"wait_s": 20}))
            await asyncio.sleep(0.1)
            gone.cancel()
            await asyncio.sleep(0.1)
            assert client.sessions is not None
            first, second = (client.sessions.open() for _ in range(2))
            runs = [
                asyncio.create_task(client.control.run({"question": "?"}, context(client, episode.key)))
                for episode in (first, second)
            ]
            status, lease = await waiting
            assert status == 200 and lease["key"] == first.key and lease["task"] == {"question": "?"}
            assert lease["seed"] == 7 and 0 < lease["budget"]["seconds"] <= 60 and "ends_at" not in lease
            _, other = await client.post("/episodes", {"wait_s": 5})
            assert other["key"] == second.key  # the client that has gone did not take it
            await client.post(f"/episodes/{lease['episode']}/end", {"answer": "four"})
            assert (await runs[0]).answer == "four"
            runs[1].cancel()
            await asyncio.wait(runs)
            status, error = await client.post(f"/episodes/{other['episode']}/alive")
            assert status == 410 and "was cancelled" in error["error"]["message"]
            last = asyncio.create_task(client.post("/episodes", {"wait_s": 60}))
            while not client.control._episodes._changed._waiters and not last.done():  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
        assert (await last)[0] == 410  # the gateway has closed, and kept no client waiting

    run(work)


def test_a_request_that_is_being_answered_keeps_the_lease(encoder: Encoder) -> None:
    async def work() -> None:
        async with serve(encoder, of_run=True, lease_s=2.0) as client:
            slow = Recorded(ScriptedEngine(lambda *at: Reply(text="slow", rest_s=2.5), encoder))
            session = AgentSession("gateway/0/s/1", settings_of(slow, encoder, LIMITS))
            assert client.sessions is not None and client.sessions.gateway is not None
            key = client.sessions.gateway.open(session)
            running = asyncio.create_task(client.control.run({}, context(client, key)))
            _, lease = await client.post("/episodes")
            assert (await client.chat(key))[0] == 200
            assert (await client.post(f"/episodes/{lease['episode']}/end"))[0] == 200
            await running

    run(work)
