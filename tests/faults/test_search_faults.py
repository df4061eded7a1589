"""A search service fails in every way while 256 rollouts search: F8 and F9 of the fault table.

Whatever it does, a call ends with the answer to its own query or as our failure, and nothing wrong is stored. While it
is down calls wait outside their slots, nobody hammers it, and all of them go on when it is back.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from ramet.config.schema import ToolConfig
from ramet.rollout.tools.runner import ToolRunner
from ramet.rollout.watchdog import Watchdog
from ramet.testing import tiny_encoder
from ramet.types import CallStatus, ToolCall, ToolRecord
from ramet_tools_bing import SearchConfig, SearchTool

ROLLOUTS = 256
FILE = Path(__file__).parents[2] / "plugins/tools_bing/tests/fault_server.py"


def fault_server() -> Any:
    spec = importlib.util.spec_from_file_location("tools_bing_fault_server", FILE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SERVERS = fault_server()
OURS = ("400", "401", "402", "403", "404", "407")  # stop the run or the search; in test_brightdata.py one by one
FAULTS = [name for name in SERVERS.BEHAVIOURS if name not in (*OURS, "good", "nothing found")]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("BRIGHTDATA_API_KEY", "key")
    monkeypatch.setattr("ramet_tools_bing.service.BACKOFF_S", 0.02)
    monkeypatch.setattr("ramet_tools_bing.circuit.FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr("ramet_tools_bing.circuit.PROBE_POLL_S", 0.1)
    monkeypatch.setattr("ramet_tools_bing.providers.brightdata.QUERY_REJECTED_S", 0.3)
    return {
        "provider": "brightdata", "cache_folder": str(tmp_path / "cache"), "per_s": 2000.0, "concurrent": 64,
        "request_timeout_s": 1.0, "down_s": 0.3,
    }  # fmt: skip


async def played(tool: SearchTool, queries: list[str], *, left_s: float, **limits: Any) -> list[ToolRecord]:
    """One rollout for each query, all at once, with so much time."""
    settings = ToolConfig(**{"timeout_s": 10.0, "concurrency": 64, **limits})
    runner = ToolRunner("search", tool, settings, tiny_encoder(), Watchdog(60))
    ends_at = asyncio.get_running_loop().time() + left_s
    try:
        ends = await asyncio.gather(
            *(
                runner.run(ToolCall(name="search", arguments={"query": query}, rollout=f"r{n}"), ends_at=ends_at)
                for n, query in enumerate(queries)
            )
        )
        return [end.record for end in ends]
    finally:
        await runner.close()


def stored(folder: str) -> dict[str, list[str]]:
    """By query: the texts of its items."""
    with sqlite3.connect(Path(folder) / "cache.db") as connection:
        rows = [row for (row,) in connection.execute("SELECT value FROM Cache WHERE key != 'ramet:format'")]
    return {value["query"]: [item["text"] for item in value["items"]] for value in map(json.loads, rows)}


def is_answer(outcome: ToolRecord, query: str) -> bool:
    return outcome.status is CallStatus.OK and outcome.text.startswith(f"[1] {query} 1\n")


@pytest.mark.parametrize("when_down", ["wait", "mask"])
def test_every_fault_at_once_gives_answers_or_failures_of_ours(options: dict[str, Any], when_down: str) -> None:
    """Every fault is met by several rollouts; three of four queries get a good answer when they ask again."""
    queries = [f"{FAULTS[n % len(FAULTS)]} no {n}" for n in range(ROLLOUTS)]

    def plan(query: str, n: int) -> str:
        fault, _, number = query.rpartition(" no ")
        return fault if n == 1 or int(number) % 4 == 0 else "good"

    async def main() -> tuple[list[ToolRecord], Any]:
        async with SERVERS.FaultServer(plan) as server:
            tool = SearchTool(SearchConfig(url=server.url, when_down=when_down, **options))
            return await played(tool, queries, left_s=5.0), server

    outcomes, server = asyncio.run(main())
    answered = [query for query, outcome in zip(queries, outcomes, strict=True) if is_answer(outcome, query)]
    others = [outcome for query, outcome in zip(queries, outcomes, strict=True) if not is_answer(outcome, query)]
    assert {outcome.status for outcome in others} <= {CallStatus.INFRA} and all(outcome.text for outcome in others)
    kept = stored(options["cache_folder"])
    assert set(answered) <= set(kept)
    assert all(texts == [f"about {query}, 1", f"about {query}, 2"] for query, texts in kept.items())
    assert server.most_running <= options["concurrent"]


@pytest.mark.parametrize("fault", ["500", "reset", "429 after 1", "30 s"])
def test_calls_wait_while_the_service_is_down_and_none_is_masked(
    options: dict[str, Any], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    down_s = 2.0
    asked = list[float]()

    def plan(query: str, n: int) -> str:
        asked.append(time.monotonic())
        return fault if asked[-1] - asked[0] < down_s else "good"

    async def main() -> list[ToolRecord]:
        async with SERVERS.FaultServer(plan) as server:
            tool = SearchTool(SearchConfig(url=server.url, **options))
            return await played(tool, [f"q{n}" for n in range(ROLLOUTS)], left_s=30.0, retries=1)

    with caplog.at_level("WARNING"):
        outcomes = asyncio.run(main())
    assert Counter(outcome.status for outcome in outcomes) == {CallStatus.OK: ROLLOUTS}
    assert all(is_answer(outcome, f"q{n}") for n, outcome in enumerate(outcomes))
    while_down = sum(at - asked[0] < down_s for at in asked)
    assert while_down <= 3 * 64 + 3 * 8  # what ran when the first ones failed, and then probes alone
    assert any("brightdata is not asked for" in line for line in caplog.messages)
    assert any("answers again" in line for line in caplog.messages)


def test_when_rollouts_are_to_be_masked_they_do_not_wait(options: dict[str, Any]) -> None:
    async def main() -> tuple[list[ToolRecord], int]:
        async with SERVERS.FaultServer(lambda query, n: "500") as server:
            tool = SearchTool(SearchConfig(url=server.url, when_down="mask", **options))
            return await played(tool, [f"q{n}" for n in range(ROLLOUTS)], left_s=30.0, retries=0), server.total

    started = time.monotonic()
    outcomes, requests = asyncio.run(main())
    assert {outcome.status for outcome in outcomes} == {CallStatus.INFRA}
    assert requests < ROLLOUTS and time.monotonic() - started < 8
    assert all("500 Internal Server Error" in outcome.text for outcome in outcomes)


def test_stored_answers_are_given_while_the_service_is_down(options: dict[str, Any]) -> None:
    def plan(query: str, n: int) -> str:
        return "good" if query.startswith("known") else "500"

    async def main() -> list[ToolRecord]:
        async with SERVERS.FaultServer(plan) as server:
            slow_machine = {"down_s": 60.0, "request_timeout_s": 10.0}  # each of the first 64 must be stored
            tool = SearchTool(SearchConfig(url=server.url, when_down="mask", **{**options, **slow_machine}))
            known = [f"known {n}" for n in range(64)]
            await played(tool, known, left_s=20.0)
            return await played(tool, [*known, *(f"new {n}" for n in range(64))], left_s=20.0, retries=0)

    outcomes = asyncio.run(main())
    assert all(outcome.status is CallStatus.OK and outcome.cached for outcome in outcomes[:64])
    assert {outcome.status for outcome in outcomes[64:]} == {CallStatus.INFRA}


def test_the_rollouts_deadline_bounds_the_wait(options: dict[str, Any]) -> None:
    async def main() -> list[ToolRecord]:
        async with SERVERS.FaultServer(lambda query, n: "429 after 1") as server:
            tool = SearchTool(SearchConfig(url=server.url, **options))
            return await played(tool, [f"q{n}" for n in range(64)], left_s=3.0)

    started = time.monotonic()
    outcomes = asyncio.run(main())
    assert {outcome.status for outcome in outcomes} == {CallStatus.INFRA} and time.monotonic() - started < 6


def test_equal_queries_of_a_group_are_one_request(options: dict[str, Any]) -> None:
    async def main() -> tuple[list[ToolRecord], int]:
        async with SERVERS.FaultServer() as server:
            tool = SearchTool(SearchConfig(url=server.url, **options))
            queries = [("who is it", " who  is it ", "who\nis it")[n % 3] for n in range(ROLLOUTS)]
            return await played(tool, queries, left_s=20.0, concurrency=256), server.total

    outcomes, requests = asyncio.run(main())
    assert requests == 1 and all(is_answer(outcome, "who is it") for outcome in outcomes)
