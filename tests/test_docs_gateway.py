"""docs/gateway.md is true: its command serves, and its dialects and keys are those of the code."""

from __future__ import annotations

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

from ramet.cli import main
from ramet.play.gateway import GatewayOptions
from ramet.rollout.gateway.server import DIALECTS
from ramet.rollout.record import read_records

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
