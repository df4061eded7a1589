"""`ProcessPool` with real processes: what ends one, and what its caller is given then."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet import InfraError
from ramet.helpers import ProcessLost, ProcessPool

MODULE = """
import os, signal, sys, time
from ramet.helpers import Caller
caller = Caller()
caller.ready(*sys.argv[2:])
for request in caller.requests():
    for name, value in request.items():
        if name == "write":
            caller._socket.sendall(value.encode())
        elif name == "killed":
            os.kill(0, value)
        else:
            time.sleep(value)
    caller.reply(os.getpid())
"""


@pytest.fixture
def pool(tmp_path: Path) -> Callable[..., ProcessPool]:
    (tmp_path / "echoes_pids.py").write_text(MODULE)
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    return lambda *arguments, **options: ProcessPool(
        "echoes_pids", arguments, **{"size": 1, "deadline_s": 30.0, "environment": path, **options}
    )


async def lost(asked: Any) -> tuple[str, bool]:
    with pytest.raises(ProcessLost) as caught:
        await asked
    return str(caught.value), caught.value.by_request


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_cancelled_call_ends_its_process_at_once_and_the_next_one_gets_another(pool: Any) -> None:
    async def steps() -> None:
        one = pool(size=1)
        first = await one.ask({})
        asked, waiting = asyncio.ensure_future(one.ask({"sleep": 600})), asyncio.ensure_future(one.ask({}))
        await asyncio.sleep(0.2)
        asked.cancel()
        began = time.monotonic()
        assert await waiting != first and not is_running(first) and time.monotonic() - began < 20
        await one.aclose()

    asyncio.run(steps())


def test_closing_ends_what_works_and_what_waits(pool: Any) -> None:
    async def steps() -> None:
        one = pool(size=1)
        pid = await one.ask({})
        asked, waiting = asyncio.ensure_future(one.ask({"sleep": 600})), asyncio.ensure_future(one.ask({}))
        await asyncio.sleep(0.2)
        await one.aclose()
        assert await lost(asked) == ("the process ended", False) and not is_running(pid)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(steps())


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"killed": 9}, ("the process ended", False)),
        ({"killed": 11}, ("the process ended", True)),
        ({"sleep": 60}, ("no result within 2 s", False)),
        ({"write": "no JSON\n"}, ("the process ended", False)),
        ({"write": "[", "sleep": 60}, ("no result within 2 s", False)),
    ],
)
def test_a_request_without_result_says_whose_doing_it_is(pool: Any, request_: Any, reason: Any) -> None:
    async def steps() -> None:
        one = pool(deadline_s=2.0)
        assert await lost(one.ask(request_)) == reason
        assert is_running(await one.ask({}))
        await one.aclose()

    asyncio.run(steps())


def test_a_process_that_answers_twice_or_has_worked_enough_is_replaced(pool: Any) -> None:
    """The second answer would be taken for the next request's."""

    async def steps() -> None:
        one = pool(most_requests=2)
        assert await one.ask({"write": '"forged"\n"of another"\n'}) == "forged"
        pids = [await one.ask({}) for _ in range(4)]
        assert pids[0] == pids[1] != pids[2] == pids[3]
        await one.aclose()

    asyncio.run(steps())


def test_a_process_that_does_not_start_is_the_hosts_doing(pool: Any) -> None:
    async def problem(one: ProcessPool) -> str:
        with pytest.raises(InfraError) as caught:
            await one.ask({})
        await one.aclose()
        return str(caught.value)

    assert asyncio.run(problem(pool("no parser"))) == "the process echoes_pids cannot work: no parser"
    assert asyncio.run(problem(pool(environment={}))) == "the process echoes_pids did not start: the process ended"
