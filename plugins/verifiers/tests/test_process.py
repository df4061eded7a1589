"""The worker process with its real protocol, and an environment that needs no `verifiers`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from plugins.verifiers.tests.conftest import Serve

from ramet import ConfigError, InfraError
from ramet_verifiers.config import VerifiersOptions
from ramet_verifiers.process import EpisodeWorker, check, environ, list_tasks

SCRIPT = Path(__file__).with_name("stand_in.py")


def options(**more: Any) -> VerifiersOptions:
    return VerifiersOptions(python=sys.executable, environment="stand_in", **more)


@asynccontextmanager
async def started(**more: Any) -> AsyncIterator[EpisodeWorker]:
    worker = EpisodeWorker(options(**more), SCRIPT)
    try:
        yield worker
    finally:
        await worker.aclose()


def doing(what: str, **data: Any) -> dict[str, Any]:
    return {"data": {"do": what, **data}, "base_url": "", "model": "policy", "max_turns": 1}


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


async def seen(file: Path) -> bool:
    """Whether the file comes within ten seconds."""
    until = time.monotonic() + 10
    while not file.exists() and time.monotonic() < until:
        await asyncio.sleep(0.02)
    return file.exists()


def test_episodes_run_side_by_side_in_one_process_against_the_gateway(serve: Serve) -> None:
    async def test() -> None:
        async with serve(lambda prompt: "2") as access, started() as worker:
            asking = {**doing("ask"), "base_url": access.ctx.session_url}
            requests = [asking, doing("read"), asking]
            answers = await asyncio.gather(*map(worker.run, requests))
            assert [answer["answer"] for answer in answers] == ["2", "", "2"]
            assert access.sampled == ["2<|im_end|>"] * 2

    run(test)


def test_a_worker_that_dies_fails_its_episodes_and_is_started_again_once() -> None:
    async def test() -> None:
        async with started() as worker:
            with pytest.raises(InfraError, match="ended with code 3; it said: loading no memory"):
                await worker.run(doing("die"))
            assert await worker.run(doing("read")) == {"answer": ""}
            for _ in range(2):
                with pytest.raises(InfraError, match="ended with code 3"):
                    await worker.run(doing("die"))
            with pytest.raises(InfraError, match="not started again"):
                await worker.run(doing("read"))

    run(test)


def test_an_episode_that_fails_ends_only_itself() -> None:
    async def test() -> None:
        async with started() as worker:
            with pytest.raises(InfraError, match="OSError: no disk"):
                await worker.run(doing("fail"))
            assert await worker.run(doing("read")) == {"answer": ""}

    run(test)


def test_an_episode_ends_in_the_worker_when_it_is_cancelled_and_when_the_worker_is_closed(tmp_path: Path) -> None:
    async def test() -> None:
        async with started() as worker:
            first, second = (
                asyncio.create_task(worker.run(doing("wait", file=str(tmp_path / name)))) for name in ("1", "2")
            )
            for name in ("1", "2"):
                assert await seen(tmp_path / f"{name}.began")
            first.cancel()
            assert await seen(tmp_path / "1") and not second.done()
        with pytest.raises(InfraError, match="ended with code 0"):
            await second
        assert (tmp_path / "2").exists()

    run(test)


def test_an_environment_that_cannot_be_loaded_is_not_loaded_again_and_again() -> None:
    async def test() -> None:
        async with started(arguments={"fault": "no data"}) as worker:
            for _ in range(2):
                with pytest.raises(InfraError, match=r"cannot be loaded: ValueError: no data$"):
                    await worker.run(doing("read"))
            with pytest.raises(InfraError, match="not started again"):
                await worker.run(doing("read"))

    run(test)


def test_tasks_are_listed_by_a_process_that_ends() -> None:
    assert [task["data"]["idx"] for task in list_tasks(options(), {}, 2, SCRIPT)] == [0, 1]
    with pytest.raises(ConfigError, match=r"environment 'stand_in' cannot be loaded: ValueError: no data$"):
        list_tasks(options(), {"fault": "no data"}, None, SCRIPT)


def test_the_worker_has_the_variables_of_the_run_without_those_of_its_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("MY_JUDGE", "here")
    own = environ(options())
    assert "PYTHONPATH" not in own and own["MY_JUDGE"] == "here"
    assert own["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)
    assert environ(options(path=["/a", "/b"]))["PYTHONPATH"] == f"/a{os.pathsep}/b"


def test_a_python_without_verifiers_and_one_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"verifiers is not installed for {sys.executable}"):
        list_tasks(options(), {}, None)
    with pytest.raises(ConfigError, match=r"x\.params\.python is ''; allowed"):
        check(VerifiersOptions(environment="e"), "x.params")
    with pytest.raises(ConfigError, match=r"x\.params\.environment is not set"):
        check(VerifiersOptions(python=sys.executable), "x.params")
    with pytest.raises(ConfigError, match=r"x\.params\.path names '\S+/absent'"):
        check(options(path=[str(tmp_path / "absent")]), "x.params")
