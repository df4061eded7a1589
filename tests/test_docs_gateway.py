"""docs/gateway.md is true: its command serves, and its dialects and keys are those of the code."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from ramet.cli import main
from ramet.engines.protocol import Sampling
from ramet.play.gateway import GatewayOptions
from ramet.rollout.agents.external import ExternalAgent
from ramet.rollout.config import ExternalConfig
from ramet.rollout.gateway.server import DIALECTS, Gateway
from ramet.rollout.gateway.session import AgentSession, SessionLimits, SessionSettings
from ramet.rollout.record import read_records
from ramet.testing.doubles import ScriptedEngine, tiny_encoder
from ramet.types import AgentBudget, AgentContext, AgentResult, Task, user_prompt

KEY = "an-admin-key-of-tests"
PAGE = (Path(__file__).resolve().parents[1] / "docs/gateway.md").read_text(encoding="utf-8")


def test_the_keys_of_the_page_are_the_commands() -> None:
    rows = dict(re.findall(r"^\| `gateway\.(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))
    options = {field.name: str(field.default) for field in dataclasses.fields(GatewayOptions)}
    assert {name: default.strip("`") for name, default in rows.items()} == options


def test_the_dialects_of_the_page_are_served() -> None:
    posted = set(re.findall(r"`POST (/v1/[\w/]+)`", PAGE))
    assert posted == {*DIALECTS, "/v1/messages/count_tokens"}


def test_the_command_serves_and_writes_the_record(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tiny-model", "tiny"]) == 0
    [line] = re.findall(r"^ramet gateway .*$", PAGE, re.MULTILINE)
    arguments = [word for word in shlex.split(line)[1:] if not word.startswith("gateway.port=")]
    command = [sys.executable, "-m", "ramet", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        try:
            address, key, admin, _ = (served.stdout.readline().strip().partition(": ")[2] for _ in range(4))
            first = ask(address, key, {"role": "user", "content": "What is 37*41?"})
            ask(
                address, key, {"role": "user", "content": "What is 37*41?"}, first, {"role": "user", "content": "Sure?"}
            )
            second = post(address, admin, "sessions", {"name": "second"})
            ask(address, second["key"], {"role": "user", "content": "And 2*2?"})
            post(address, admin, "episodes/second/rewards", {"reward": 0.5, "turn": 0, "token": 0})
            post(address, admin, "episodes/second/end", {"answer": "4", "reward": 1})
            served.send_signal(signal.SIGINT)
            said = served.stdout.read()
            assert served.wait(60) == 0
        finally:
            served.kill()
    assert said.startswith("3 turns in 2 threads, ") and said.rstrip().endswith(": session.jsonl.gz")
    [record] = read_records(Path("session.jsonl.gz"))
    scored, other = record.group.rollouts
    assert [segment.turn for segment in scored.rollout.segments] == [0, 0, 1, 1]
    assert scored.reward is None and scored.rollout.infos == ({"asked": {"temperature": 0.5}},) * 2
    assert (other.rollout.answer, other.rollout.turn_rewards) == ("4", (1.0,))
    assert list(other.rollout.token_rewards.values()) == [0.5]
    assert other.rollout.infos[0]["session"] == "second"
    assert main(["gateway", *arguments[1:]]) == 1  # it replaces no file


def post(address: str, admin: str, path: str, body: dict[str, Any]) -> Any:
    url = f"{address.removesuffix('/v1')}/ramet/v1/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {admin}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def ask(address: str, key: str, *messages: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps({"model": "policy", "messages": messages, "max_tokens": 8, "temperature": 0.5}).encode()
    request = urllib.request.Request(f"{address}/chat/completions", body, {"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        reply: dict[str, Any] = json.loads(response.read())["choices"][0]["message"]
    return reply


def page_client() -> dict[str, Any]:
    [program] = re.findall(r"^```python\n(import contextlib.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    client: dict[str, Any] = {}
    # A connection that comes while the gateway closes may stay open as long as this process lives.
    exec(program.replace("timeout=600", "timeout=5"), client)
    return client


def test_the_client_of_the_page_says_why_it_does_not_begin() -> None:
    pytest.importorskip("aiohttp", reason="ramet[openai] is not installed")
    work = page_client()["work"]

    async def wrong_key() -> str:
        async with Gateway(control=ExternalAgent(ExternalConfig()).control) as gateway:
            with pytest.raises(SystemExit, match=r"401: Unauthorized: .*this is not the admin key"):
                await asyncio.to_thread(work, f"{gateway.url}/ramet/v1", "another-key")
            return f"{gateway.url}/ramet/v1"

    closed = asyncio.run(wrong_key())
    with pytest.raises(SystemExit, match=rf"nothing answers at {closed} \(.*Connection refused"):
        work(closed, "another-key")


def test_the_client_of_the_page_runs_rollouts(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="ramet[openai] is not installed")
    client = page_client()
    encoder = tiny_encoder()
    engine = ScriptedEngine(lambda task, path, turn: f"four by {path}", encoder)
    limits, sampling = SessionLimits(max_turns=2, max_tokens=500), Sampling(max_tokens=1)
    settings = SessionSettings(engine=engine, encoder=encoder, limits=limits, sampling=sampling, seed=1)
    agent = ExternalAgent(ExternalConfig(admin_key=KEY))

    async def rollout(gateway: Gateway, number: int) -> AgentResult:
        key = gateway.open(AgentSession(f"gateway/0/t/{number}", settings))
        context = AgentContext(
            base_url=f"{gateway.url}/v1",
            key=key,
            model="policy",
            budget=AgentBudget(turns=2, tokens=500, tool_calls=0, seconds=60.0),
            folder=tmp_path,
            seed=1,
        )
        return await agent.run(Task(id="t", prompt=user_prompt("What is 2+2?")), context)

    async def main() -> None:
        async with Gateway(control=agent.control) as gateway:
            working = asyncio.create_task(asyncio.to_thread(client["work"], f"{gateway.url}/ramet/v1", KEY))
            rollouts = asyncio.gather(*(rollout(gateway, number) for number in range(2)))
            await asyncio.wait([working, rollouts], return_when=asyncio.FIRST_COMPLETED)
            assert rollouts.done(), working.exception()
        await working
        results = rollouts.result()
        assert results == [AgentResult(answer=f"four by {number}") for number in range(2)]

    asyncio.run(main())


def test_an_admin_key_comes_from_the_environment(capsys: Any, monkeypatch: Any) -> None:
    assert main(["gateway", "model.path=tiny", "gateway.admin_key=an-admin-key-of-tests"]) == 1
    assert "gateway.admin_key: a secret must not be written down" in capsys.readouterr().err
    monkeypatch.delenv("NO_KEY", raising=False)
    assert main(["gateway", "model.path=tiny", "gateway.admin_key=${oc.env:NO_KEY}"]) == 1
    assert "gateway.admin_key: the environment variable NO_KEY is not set" in capsys.readouterr().err


def test_keys_that_cannot_be_are_named_all_at_once(capsys: Any) -> None:
    assert main(["gateway", "model.path=tiny", "gateway.port=70000", "gateway.prt=1"]) == 1
    said = capsys.readouterr().err
    assert "gateway.port=70000: must be an integer, 0 to 65535" in said
    assert "gateway.prt: no such key; allowed: gateway.host, gateway.port, gateway.record, " in said
