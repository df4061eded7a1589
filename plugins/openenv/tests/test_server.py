"""Servers that a worker starts, and options."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet import ConfigError, InfraError, Task, user_prompt
from ramet_openenv import OpenEnvConfig
from ramet_openenv.server import OpenEnvServer
from ramet_openenv.step import OpenEnvStep

TASK = Task(id="t", prompt=user_prompt("Play."))


def test_a_program_that_has_ended_is_started_again(command: Callable[..., list[str]]) -> None:
    """Its sessions are infrastructure failures; the next rollout finds another server."""
    step = OpenEnvStep(OpenEnvConfig(command=command(), action="guess", start_timeout_s=240.0))

    async def main() -> None:
        first = await step.open(TASK, 1)
        with pytest.raises(InfraError, match="the connection ended before the reply to step"):
            await first.session.step({"guess": 52})
        await first.session.close()
        await asyncio.to_thread(step._server._child._process.wait)  # type: ignore[union-attr]
        second = await step.open(TASK, 1)
        assert (await second.session.step({"guess": 60})).reward == -0.25
        await step.close(second)

    asyncio.run(main())


def test_rollouts_wait_for_a_place(command: Callable[..., list[str]], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ramet_openenv")
    step = OpenEnvStep(OpenEnvConfig(command=command("guess", 1), action="guess", start_timeout_s=240.0))

    async def main() -> None:
        first = await step.open(TASK, 1)
        waiting = asyncio.create_task(step.open(TASK, 2))
        while "the rollout waits" not in caplog.text and not waiting.done():
            await asyncio.sleep(0.05)
        assert not waiting.done()
        await step.close(first)
        second = await waiting
        assert (await second.session.step({"guess": 60})).observation["guesses"] == 1
        await step.close(second)

    asyncio.run(main())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_server_ends_with_the_process_that_started_it() -> None:
    here = os.path.dirname(__file__)
    program = [sys.executable, f"{here}/small_server.py", "{port}", "guess", "1"]
    code = f"""
import json
from ramet_openenv import OpenEnvConfig
from ramet_openenv.server import OpenEnvServer
server = OpenEnvServer(OpenEnvConfig(command={program!r}))
url = server.url()
print(json.dumps([url, server._child._process.pid]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    url, pid = json.loads(done.stdout)
    assert url.startswith("http://127.0.0.1:")
    until = time.monotonic() + 20
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(pid)


@pytest.mark.parametrize(
    ("program", "timeout_s", "problem"),
    [
        ("echo no module; exit 4", 60.0, r"the program ended with 4; it said: no module"),
        ("echo slow; exec sleep 60", 2.0, r"start_timeout_s=2\); it said: slow"),
    ],
)
def test_a_program_that_does_not_serve_is_named_with_its_last_words(
    program: str, timeout_s: float, problem: str
) -> None:
    server = OpenEnvServer(OpenEnvConfig(command=["sh", "-c", program, "{port}"], start_timeout_s=timeout_s))
    with pytest.raises(InfraError, match=problem):
        server.url()


def test_a_program_that_there_is_not_is_the_users_mistake() -> None:
    with pytest.raises(ConfigError, match=r"params.command .* does not start: .*uvicron"):
        OpenEnvServer(OpenEnvConfig(command=["uvicron", "{port}"])).url()


def test_a_program_sees_few_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    code = "import os; print(os.environ.get('OPENAI_API_KEY'), os.environ['MINE']); raise SystemExit(1)"
    config = OpenEnvConfig(command=[sys.executable, "-c", code, "{port}"], env={"MINE": "here"})
    with pytest.raises(InfraError, match="it said: None here"):
        OpenEnvServer(config).url()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "http://h:1", "command": ["x", "{port}"]}, "give either command or url"),
        ({"url": "http://user:word@h:1"}, "url has a user or a password: give headers"),
        ({"url": "ws://h:1"}, "url must begin with http:// or https://, got 'ws://h:1'"),
        ({"command": ["uvicorn", "--port", "8000"]}, r"command must have \{port\}"),
        ({"url": "http://h:1", "cwd": "/tmp"}, "cwd: a server without a command has none"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        OpenEnvConfig(**options)


def test_a_command_runs_code_and_an_address_does_not() -> None:
    config = OpenEnvConfig(command=["uvicorn", "app", "{port}"], env={"A": "1"}, cwd="env")
    assert config.runs_code() == {"command": "uvicorn app '{port}'", "env": "A", "cwd": "env"}
    assert OpenEnvConfig(url="http://h:1/env").runs_code() == {}
    assert OpenEnvServer(OpenEnvConfig()).url() == "http://127.0.0.1:8000"
