"""Real clients of all dialects, each in a process of its own, and most in an environment of its own.

`RAMET_CLIENTS` names the folder that scripts/client_environments.sh has filled. A client that it does not have runs
with this Python if its package is installed, and is skipped otherwise.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="needs ramet[openai]")
pytest.importorskip("torch", reason="needs ramet[train]")

import torch
from core.tests.rollout.gateway.conftest import Recorded, Served, check_rollouts, serving
from core.tests.rollout.gateway.scenarios import AGENTS, SCENARIOS

from ramet.algorithms.aggregation import TokenCounts, token_weights
from ramet.config.schema import LossAggregation
from ramet.models.encoder import Encoder
from ramet.policy.batching.rows import rows_of
from ramet.policy.batching.threads import Threads
from ramet.policy.batching.train_batch import TrainBatch
from ramet.rollout.agents.command import CommandAgent
from ramet.rollout.agents.function import FunctionAgent
from ramet.rollout.config import CommandConfig, FunctionConfig
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.doubles import ScriptedEngine
from ramet.types import Rollout

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
    "mini-swe-agent": "minisweagent",
}
FUNCTIONS = ("openai-agents", "mini-swe-agent")  # their scripts have a function `run` for `rollout_step=function`
LIMIT_S = 120
PAUSE_S = 0.02


def by_client(clients: Iterable[str]) -> list[Any]:
    """Parameters of a test; `make light` leaves out clients that have an environment of their own."""
    always = ("openai", "anthropic", "openai-agents")
    return [pytest.param(client, marks=() if client in always else pytest.mark.slow) for client in clients]


@cache
def program_of(client: str) -> tuple[str, ...]:
    """The command that runs the client's scenarios, in its environment. Skips the test without one."""
    folder, name = Path(os.environ.get("RAMET_CLIENTS", "-"), client), f"{client.replace('-', '_')}_client"
    if (CLIENTS / f"{name}.mjs").exists() and (folder / "bin" / "node").exists():
        return str(folder / "bin" / "node"), str(CLIENTS / f"{name}.mjs")
    if (CLIENTS / f"{name}.py").exists() and (folder / "bin" / "python").exists():
        return str(folder / "bin" / "python"), str(CLIENTS / f"{name}.py")
    if client in MODULES and importlib.util.find_spec(MODULES[client]) is not None:
        return sys.executable, str(CLIENTS / f"{name}.py")
    pytest.skip(f"{client} is not installed: scripts/client_environments.sh FOLDER {client}, RAMET_CLIENTS=FOLDER")


def environ_of(client: str, **more: str) -> dict[str, str]:
    """The variables of a client's process; RAMET_CLIENT is the folder of its environment."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {"RAMET_CLIENT": str(Path(program_of(client)[0]).parents[1]), "NO_PROXY": "*"} | more


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a client's process wrote, and the sessions of its scenarios."""

    version: str
    results: dict[str, dict[str, Any]]
    served: dict[str, Served]


async def run_client(client: str, written: Path) -> Outcome:
    """Run all scenarios in one process, which is killed while the last one waits for a reply."""
    async with serving() as gateway:
        served = {name: gateway.open(one.script, one.limits) for name, one in SCENARIOS[client].items()}
        addresses = {name: {"url": f"{one.url}/v1", "key": one.key} for name, one in served.items()}
        process = await asyncio.create_subprocess_exec(
            *program_of(client),
            env=environ_of(client, RAMET_SESSIONS=json.dumps(addresses), RAMET_RESULTS=str(written)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        printed = asyncio.create_task(process.communicate())
        try:
            async with asyncio.timeout(LIMIT_S):
                await kill_in_second_turn(process, served["killed"])
        finally:
            kill(process)
            output, _ = await printed
        assert written.exists(), output.decode()
        found = json.loads(written.read_text())
        found["results"]["killed"] = {"returned": process.returncode}
        return Outcome(**found, served=served)


def kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process with its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def kill_in_second_turn(process: asyncio.subprocess.Process, served: Served) -> None:
    """Kill the process once its second turn is being sampled, and wait until that turn is over."""
    turns = served.session.threads.turns
    while len(turns) < 2 and process.returncode is None:
        await asyncio.sleep(PAUSE_S)
    if process.returncode is None:
        kill(process)
        await process.wait()
        while not turns[-1].is_over:
            await asyncio.sleep(PAUSE_S)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {}


@pytest.fixture
def outcome(client: str, outcomes: dict[str, Outcome], tmp_path: Path) -> Outcome:
    """What the client's process wrote; it runs once for all tests."""
    if client not in outcomes:
        program_of(client)
        outcomes[client] = asyncio.run(run_client(client, tmp_path / "results.json"))
    return outcomes[client]


@pytest.mark.parametrize(
    ("client", "name"),
    [
        pytest.param(*parameter.values, name, marks=parameter.marks)
        for parameter in by_client(SCENARIOS)
        for name in SCENARIOS[parameter.values[0]]
    ],
)
def test_a_client_gets_its_answer_and_every_token_is_once_in_the_rollout(
    client: str, name: str, outcome: Outcome
) -> None:
    scenario, result, served = SCENARIOS[client][name], outcome.results[name], outcome.served[name]
    assert "raised" not in result, result["raised"]
    assert result["returned"] == scenario.returned
    rollout = served.check()
    assert (len(served.engine.seen), len(rollout.threads)) == (scenario.turns, scenario.threads)


def in_one_thread(rollout: Rollout) -> Rollout:
    """The same tokens in one thread."""
    return replace(rollout, segments=tuple(replace(s, thread=0) for s in rollout.segments), thread_starts=())


def weights_of(rollouts: Sequence[Rollout], mode: LossAggregation, size: int) -> list[Any]:
    """The weights of all tokens, one array a rollout, where a micro-batch has `size` threads."""
    scored = [ScoredRollout(rollout=replace(one, id=str(i)), reward=0.0) for i, one in enumerate(rollouts)]
    rows = rows_of([ScoredGroup(task=scored[0].rollout.task, rollouts=tuple(scored))])
    batch = TrainBatch(rows=rows).by_thread()
    trained = [int(row.mask.sum()) for row in batch.rows]
    complete = [rollout.n_sampled_tokens for rollout in rollouts]
    counts = TokenCounts(tokens=sum(trained), rollouts=len(rows), max_tokens=999)
    found = []
    for first in range(0, len(batch.rows), size):
        chosen = range(first, min(first + size, len(batch.rows)))
        of = [batch.rollout_of(i) for i in chosen]
        ids = list(dict.fromkeys(of))
        elsewhere = [complete[id] - sum(trained[i] for i in chosen if batch.rollout_of(i) == id) for id in ids]
        mask = [torch.from_numpy(batch.rows[i].mask) for i in chosen]
        numbers = [ids.index(id) for id in of]
        places = torch.repeat_interleave(torch.tensor(numbers), torch.tensor([len(one) for one in mask]))
        weights = token_weights(mode, torch.cat(mask), places, counts, elsewhere=torch.tensor(elsewhere).float())
        found += [part.numpy() for part in weights.split([len(one) for one in mask])]
    return Threads.of(rows).join(found)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("client", by_client(SCENARIOS))
def test_threads_of_a_client_weigh_as_the_same_tokens_in_one(client: str, size: int, outcome: Outcome) -> None:
    rollouts = [served.check() for served in outcome.served.values()]
    rollouts = [rollout for rollout in rollouts if rollout.n_sampled_tokens]
    assert max(len(rollout.threads) for rollout in rollouts) > 1
    for mode in LossAggregation:
        found, expected = weights_of(rollouts, mode, size), weights_of(list(map(in_one_thread, rollouts)), mode, 1000)
        for weights, of_one in zip(found, expected, strict=True):
            np.testing.assert_allclose(weights, of_one, rtol=1e-6)


@pytest.mark.parametrize("client", by_client(AGENTS))
def test_a_client_is_an_agent_and_one_that_is_killed_has_crashed(client: str, play: Any, encoder: Encoder) -> None:
    """Two rollouts by `rollout_step=command`; the tool that the second one's policy calls kills its program."""
    turns = AGENTS[client]
    engine = Recorded(
        ScriptedEngine(lambda task, path, turn: (turns.replies if path == "0" else turns.kills)[turn], encoder)
    )
    program = list(program_of(client))
    step = CommandAgent(CommandConfig(argv=program, timeout_s=LIMIT_S, env=environ_of(client)))
    first, second = play(None, step=step, tools={}, engine=engine, group_size=2).rollouts
    check_rollouts([first, second], engine)
    assert first.valid and first.answer == "It is 3." and first.infos[-1] == {}
    assert second.valid and second.turn_rewards == (0.0,) and "exit code -9" in second.infos[-1]["error"]
    assert len(first.tool_calls) == "".join(turns.replies).count("<tool_call>") and len(second.tool_calls) == 1


@pytest.mark.parametrize("client", by_client(FUNCTIONS))
def test_a_client_is_a_function(client: str, play: Any, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(MODULES[client]) is None:
        pytest.skip(f"{client} is not installed next to Ramet: pip install {client}")
    monkeypatch.syspath_prepend(str(CLIENTS))
    replies = AGENTS[client].replies
    engine = Recorded(ScriptedEngine(lambda task, path, turn: replies[turn], encoder))
    step = FunctionAgent(FunctionConfig(function=f"{client.replace('-', '_')}_client:run"))
    rollouts = play(None, step=step, tools={}, engine=engine, group_size=2).rollouts
    check_rollouts(rollouts, engine)
    assert [(one.valid, one.answer, len(one.threads)) for one in rollouts] == [(True, "It is 3.", 1)] * 2


def rows_of_page() -> dict[str, list[str]]:
    """The cells of each client in docs/clients.md."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {name.strip("`"): cells for name, *cells in rows}


@pytest.mark.parametrize("client", by_client(SCENARIOS))
def test_the_page_has_the_numbers_of_what_ran(client: str, outcome: Outcome) -> None:
    rollouts = [served.check() for served in outcome.served.values()]
    version, _, _, turns, threads, tokens = rows_of_page()[client]
    assert int(turns) == sum(len(served.engine.seen) for served in outcome.served.values())
    assert int(threads) == sum(len(rollout.threads) for rollout in rollouts)
    assert int(tokens) == sum(rollout.n_sampled_tokens for rollout in rollouts)
    assert version == outcome.version or "RAMET_CLIENTS" not in os.environ


def test_the_page_and_the_script_have_the_same_clients() -> None:
    script = (ROOT / "scripts" / "client_environments.sh").read_text()
    pinned = dict(re.findall(r'^  "([\w-]+): (.*)"$', script, re.MULTILINE))
    rows = rows_of_page()
    assert set(pinned) == set(rows)
    for client, cells in rows.items():
        assert re.search(f"[=@]{re.escape(cells[0])}( |$)", pinned[client])
