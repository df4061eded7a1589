"""Real clients of all dialects, each in a child process and an environment of its own.

`RAMET_CLIENTS` names the folder that scripts/client_environments.sh has filled. Without it, and without the package in
this environment, a client's tests are skipped.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs ramet[openai]")

from core.tests.rollout.gateway.conftest import LARGE

from ramet.rollout.gateway.session import SessionLimits
from ramet.testing.doubles import Reply

CLIENTS = Path(__file__).parent / "clients"
ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "clients.md"
MODULES = {  # client -> the module that it needs
    "openai": "openai",
    "anthropic": "anthropic",
    "openai-agents": "agents",
    "langgraph": "langgraph",
    "pydantic-ai": "pydantic_ai",
    "smolagents": "smolagents",
}
LIMIT_S = 120


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def results_in(prompt: str) -> list[str]:
    """The results of tools in a prompt, in order."""
    return re.findall(r"<tool_response>\n(.*?)\n</tool_response>", prompt, re.DOTALL)


def calculator(prompt: str) -> str:
    """Two calls in one turn, then one that needs their results, then a text with thoughts."""
    results = results_in(prompt)
    if not results:
        return f"I add.\n{call('add', a=1, b=2)}\n{call('add', a=3, b=4)}"
    if len(results) == 2:
        return call("add", a=int(results[0]), b=int(results[1]))
    return f"<think>\nEasy.\n</think>\n\nThe sum is {results[2]}."


def team(prompt: str) -> str:
    """Two tools, then a handoff to the second agent, which answers."""
    if "You speak." in prompt:
        return "Yes." if "Are you sure?" in prompt else "It is 10."
    results = results_in(prompt)
    if not results:
        return f"I add.\n{call('add', a=1, b=2)}\n{call('multiply', a=3, b=4)}"
    return call("transfer_to_speaker")


def family(prompt: str) -> str:
    """An agent that asks two others at the same time."""
    results = results_in(prompt)
    if "You are the boss." in prompt:
        if results:
            return f"They say {' and '.join(results)}."
        return f"{call('ask_ann', input='1 + 2?')}\n{call('ask_bob', input='1 + 2?')}"
    return f"{results[0]}!" if results else call("add", a=1, b=2)


def counter(prompt: str) -> str:
    return "one more" if "And one more." in prompt else f"counted to {re.findall('Count to (.)', prompt)[0]}"


def unsteady() -> Callable[[str], Reply | str]:
    """An engine that fails at first, and is slow at the first request of each later question."""
    seen: set[str] = set()

    def script(prompt: str) -> Reply | str:
        question = re.findall(r"<\|im_start\|>user\n(.*?)\?", prompt)[0]
        if question in seen:
            return f"{question}, again"
        seen.add(question)
        return Reply(text="", fails="down") if question == "First" else Reply(text=f"{question}, once", rest_s=1.5)

    return script


def large(prompt: str) -> str:
    """One of the calls fails."""
    results = results_in(prompt)
    if not results:
        return f"I add.\n{call('add', a=1, b=2)}\n{call('add', a=3, b=4)}"
    return f"{results[0]}, {'an error' if results[1].startswith('Error') else results[1]}"


def smol(prompt: str) -> str:
    """`final_answer` is a tool of the package, which writes calls and results as texts."""
    if "Observation:\n3\n7" in prompt:
        return call("final_answer", answer="10")
    return f"I add.\n{call('add', a=1, b=2)}\n{call('add', a=3, b=4)}"


def coder(prompt: str) -> str:
    if prompt.count("<|im_start|>assistant") > 1:
        return "Thought: I know it.\n<code>\nfinal_answer(10)\n</code>"
    return "Thought: I add.\n<code>\nprint(add(add(1, 2), add(3, 4)))\n</code>"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What a client does, and what becomes of it."""

    returned: Any
    turns: int = 3
    threads: int = 1
    script: Callable[[str], Reply | str] = calculator
    limits: SessionLimits = LARGE


SUM = "The sum is 10."
TEAM = Scenario(script=team, returned=["Speaker", "It is 10."], turns=3, threads=2)
SCENARIOS: dict[str, dict[str, Scenario]] = {
    "openai": {
        "chat": Scenario(returned=SUM),
        "chat_stream": Scenario(returned=SUM),
        "responses": Scenario(returned=SUM),
        "responses_stream": Scenario(returned=SUM),
        "responses_previous": Scenario(returned=SUM),
        "errors": Scenario(
            turns=1,
            limits=SessionLimits(max_turns=1, max_tokens=1000),
            script=lambda prompt: "Hello.",
            returned=[
                [400, "BadRequestError", "n", None],
                [400, "BadRequestError", "logit_bias", None],
                [400, "BadRequestError", "text.format", None],
                [400, "BadRequestError", "tools[0].type", None],
                [404, "NotFoundError", "previous_response_id", "previous_response_not_found"],
                [404, "NotFoundError", "response_id", None],
                [400, "BadRequestError", None, "context_length_exceeded"],
                [400, "BadRequestError", None, "context_length_exceeded"],
                [401, "AuthenticationError", None, "invalid_api_key"],
                [401, "AuthenticationError", None, "invalid_api_key"],
            ],
        ),
        "retries": Scenario(
            script=unsteady(), returned=["First, again", "Slow, once", "Slow again, once"], turns=3, threads=3
        ),
        "parallel": Scenario(script=counter, returned=['"one more"'] * 4, turns=8, threads=4),
        "completions": Scenario(
            script=lambda prompt: " look up\nObservation: none",
            returned=[" look up", "stop"],
        ),
    },
    "anthropic": {
        "messages": Scenario(returned=["thinking", "text", "end_turn", SUM]),
        "messages_stream": Scenario(returned=["thinking", "text", "end_turn", SUM]),
        "events": Scenario(
            turns=1,
            script=lambda prompt: f"<think>hm</think>\n\nI add.\n{call('add', a=1, b=2)}",
            returned=[
                "message_start",
                *("content_block_start", "thinking_delta", "signature_delta", "content_block_stop"),
                *("content_block_start", "text_delta", "content_block_stop"),
                *("content_block_start", "input_json_delta", "content_block_stop"),
                *("message_delta", "message_stop"),
            ],
        ),
        "tool_runner": Scenario(script=large, returned="3, an error", turns=2),
        "count_tokens": Scenario(returned=[True, True], turns=2),
        "stops": Scenario(
            script=lambda prompt: "one STOP two",
            returned=[
                ["stop_sequence", "STOP", "one"],
                ["max_tokens", None, "one"],
                ["end_turn", None, "one STOP two"],
            ],
        ),
        "errors": Scenario(
            turns=1,
            limits=SessionLimits(max_turns=1, max_tokens=1000),
            script=lambda prompt: "Hello.",
            returned=[
                [400, "BadRequestError", "invalid_request_error", "n is not supported"],
                [400, "BadRequestError", "invalid_request_error", "tool_choice.type m"],
                [400, "BadRequestError", "invalid_request_error", "tools[0].type must"],
                [400, "BadRequestError", "invalid_request_error", "messages[0].conten"],
                [400, "BadRequestError", "invalid_request_error", "messages must not "],
                [400, "BadRequestError", "invalid_request_error", "prompt is too long"],
                [400, "BadRequestError", "invalid_request_error", "prompt is too long"],
                [401, "AuthenticationError", "authentication_error", "no session has thi"],
                [401, "AuthenticationError", "authentication_error", "no session has thi"],
            ],
        ),
        "retries": Scenario(
            script=unsteady(), returned=["First, again", "Slow, once", "Slow again, once"], turns=3, threads=3
        ),
        "unavailable": Scenario(
            script=lambda prompt: Reply(text="", fails="down"),
            returned=[503, "ServiceUnavailableError", "api_error"],
            turns=0,
        ),
        "parallel": Scenario(script=counter, returned=["one more"] * 4, turns=8, threads=4),
    },
    "openai-agents": {
        "responses": TEAM,
        "responses_stream": TEAM,
        "chat": TEAM,
        "chat_stream": TEAM,
        "previous_response": TEAM,
        "session": Scenario(script=team, returned=["It is 10.", "Yes.", "It is 10."], turns=7, threads=4),
        "sub_agents": Scenario(script=family, returned="They say 3! and 3!.", turns=6, threads=3),
    },
    "langgraph": {
        name: Scenario(returned=SUM)
        for name in ("chat", "chat_stream", "responses", "responses_stream", "responses_previous")
    },
    "pydantic-ai": {
        "chat": Scenario(returned=SUM),
        "chat_stream": Scenario(returned=SUM),
        "responses": Scenario(returned=[SUM, SUM], turns=4),
        "responses_stream": Scenario(returned=SUM),
    },
    "smolagents": {  # it rewrites what the model said, so every turn begins a thread
        "tools": Scenario(script=smol, returned="10", turns=2, threads=2),
        "tools_stream": Scenario(script=smol, returned="10", turns=2, threads=2),
        "code": Scenario(script=coder, returned=10, turns=2, threads=2),
    },
}


@cache
def python_of(client: str) -> str | None:
    """The interpreter of the client's environment; None without one."""
    python = Path(os.environ.get("RAMET_CLIENTS", "-"), client, "bin", "python")
    if python.exists():
        return str(python)
    return sys.executable if importlib.util.find_spec(MODULES[client]) is not None else None


async def run_client(client: str, python: str, serve: Any) -> dict[str, Any]:
    """Run all scenarios in one process. Returns each one's session with what the client returned or raised."""
    async with AsyncExitStack() as stack:
        written = Path(stack.enter_context(TemporaryDirectory()), "results.json")
        served = {
            name: await stack.enter_async_context(serve(scenario.script, limits=scenario.limits))
            for name, scenario in SCENARIOS[client].items()
        }
        addresses = {name: {"url": f"{one.url}/v1", "key": one.key} for name, one in served.items()}
        environ = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
        process = await asyncio.create_subprocess_exec(
            python,
            str(CLIENTS / f"{client.replace('-', '_')}_client.py"),
            env={**environ, "RAMET_SESSIONS": json.dumps(addresses), "RAMET_RESULTS": str(written), "NO_PROXY": "*"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, printed.decode()
        return {**json.loads(written.read_text()), "served": served}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    return {}


def outcome_of(client: str, serve: Any, outcomes: dict[str, Any]) -> dict[str, Any]:
    """What the client's process returned; it runs once for all tests."""
    if (python := python_of(client)) is None:
        pytest.skip(f"the package {client} is not installed: RAMET_CLIENTS=FOLDER, scripts/client_environments.sh")
    if client not in outcomes:
        outcomes[client] = asyncio.run(run_client(client, python, serve))
    return outcomes[client]


@pytest.mark.parametrize(
    ("client", "name"), [(client, name) for client, scenarios in SCENARIOS.items() for name in scenarios]
)
def test_a_client_gets_its_answer_and_every_token_is_once_in_the_rollout(
    client: str, name: str, serve: Any, outcomes: dict[str, Any]
) -> None:
    outcome, scenario = outcome_of(client, serve, outcomes), SCENARIOS[client][name]
    result, served = outcome["results"][name], outcome["served"][name]
    assert "raised" not in result, result["raised"]
    assert result["returned"] == scenario.returned
    rollout = served.check()
    assert (len(served.engine.seen), len(rollout.threads)) == (scenario.turns, scenario.threads)


def rows_of_page() -> dict[str, list[str]]:
    """The cells of each client in docs/clients.md."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {name.strip("`"): cells for name, *cells in rows}


@pytest.mark.parametrize("client", SCENARIOS)
def test_the_page_has_the_numbers_of_what_ran(client: str, serve: Any, outcomes: dict[str, Any]) -> None:
    outcome = outcome_of(client, serve, outcomes)
    rollouts = [served.check() for served in outcome["served"].values()]
    version, _, _, turns, threads, tokens = rows_of_page()[client]
    assert int(turns) == sum(len(served.engine.seen) for served in outcome["served"].values())
    assert int(threads) == sum(len(rollout.threads) for rollout in rollouts)
    assert int(tokens) == sum(rollout.n_sampled_tokens for rollout in rollouts)
    assert version == outcome["version"] or "RAMET_CLIENTS" not in os.environ


def test_the_page_and_the_script_have_the_same_clients() -> None:
    script = (ROOT / "scripts" / "client_environments.sh").read_text()
    pinned = dict(re.findall(r'^  "([\w-]+): (.*)"$', script, re.MULTILINE))
    rows = rows_of_page()
    assert set(pinned) == set(rows)
    for client, cells in rows.items():
        assert f"=={cells[0]}" in pinned[client]
