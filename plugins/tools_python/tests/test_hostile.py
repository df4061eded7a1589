"""The hostile snippets that isolation level 0 must hold against, run side by side."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ramet_tools_python.config import PythonConfig
from ramet_tools_python.result import PythonResult
from ramet_tools_python.sandbox import Sandbox

SNIPPETS = Path(__file__).resolve().parents[3] / "tests" / "golden" / "values" / "hostile_snippets.jsonl"
LIMIT_S = 2.0
LIBRARIES = [name for name in ("numpy", "sympy") if find_spec(name)]
SLOW_START_S = 0.5  # what a busy machine may add to the time of a program


def _snippets() -> list[dict[str, Any]]:
    """Those of level 0 whose libraries are installed."""
    rows = [json.loads(line) for line in SNIPPETS.read_text(encoding="utf-8").splitlines()]
    absent = {"numpy", "sympy"} - set(LIBRARIES)
    return [r for r in rows if r["expect"].get("min_level", 0) == 0 and not any(a in r["code"] for a in absent)]


@dataclass(frozen=True)
class Outcome:
    result: PythonResult
    seconds: float  # without the wait for a slot
    alive: str

    @property
    def took(self) -> float:
        return self.seconds - self.result.queue_ms / 1000


class Arena:
    """The set-up of the list: a canary, a listening port, a secret in the environment."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.canary = folder / "canary"
        self.canary.mkdir()
        (self.canary / "canary.txt").write_text("CANARY")
        self.scratch = folder / "scratch"
        self.scratch.mkdir()

    def run(self, snippets: list[dict[str, Any]]) -> dict[str, list[Outcome]]:
        return asyncio.run(self._run(snippets))

    async def _run(self, snippets: list[dict[str, Any]]) -> dict[str, list[Outcome]]:
        config = PythonConfig(
            timeout_s=LIMIT_S, memory_mb=1024, preload=LIBRARIES, scratch=str(self.scratch), queue_timeout_s=120
        )
        sandbox = Sandbox(config)
        try:
            outcomes = await asyncio.gather(*(self._play(sandbox, snippet) for snippet in snippets))
            await asyncio.gather(*(sandbox.run("1") for _ in range(config.slots)))
            return {snippet["name"]: outcome for snippet, outcome in zip(snippets, outcomes, strict=True)}
        finally:
            await sandbox.close()

    async def _play(self, sandbox: Sandbox, snippet: dict[str, Any]) -> list[Outcome]:
        code = snippet["code"].replace("{CANARY_DIR}", str(self.canary)).replace("{PORT}", str(self.port))
        outcomes = []
        for _ in range(snippet["expect"].get("repeat", 1)):
            started = time.monotonic()
            result = await sandbox.run(code)
            seconds = time.monotonic() - started
            outcomes.append(Outcome(result, seconds, (await sandbox.run("print('alive')")).text))
        return outcomes


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder, socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MY_API_KEY", "SECRET-CANARY-123")
            yield Arena(Path(folder), server.getsockname()[1])


@pytest.fixture(scope="module")
def outcomes(arena: Arena) -> dict[str, list[Outcome]]:
    return arena.run(_snippets())


@pytest.mark.parametrize("snippet", _snippets(), ids=lambda snippet: snippet["name"])
def test_level_0_holds_against(snippet: dict[str, Any], arena: Arena, outcomes: dict[str, list[Outcome]]) -> None:
    problems = [problem for outcome in outcomes[snippet["name"]] for problem in _problems(outcome, snippet["expect"])]
    if problems:  # a busy machine: once more, alone
        again = arena.run([snippet])[snippet["name"]]
        problems = [problem for outcome in again for problem in _problems(outcome, snippet["expect"])]
    assert problems == []


def test_nothing_stays_behind(arena: Arena, outcomes: dict[str, list[Outcome]]) -> None:
    assert outcomes
    assert list(arena.scratch.iterdir()) == []
    assert [path.name for path in arena.canary.iterdir()] == ["canary.txt"]
    assert (arena.canary / "canary.txt").read_text() == "CANARY"
    assert not [pid for pid in _processes() if str(arena.scratch) in _working_folder(pid)]


def _problems(outcome: Outcome, expect: dict[str, Any]) -> list[str]:
    result, problems = outcome.result, []
    if "status" in expect and result.status not in expect["status"]:
        problems.append(f"status {result.status}, allowed {expect['status']}; {result.stderr[-300:]}")
    if "rc" in expect and result.rc != expect["rc"]:
        problems.append(f"rc {result.rc}")
    for stream, text in (("out", result.stdout), ("err", result.stderr)):
        problems += [f"{stream} lacks {part!r}" for part in expect.get(f"{stream}_has", []) if part not in text]
        problems += [f"{stream} holds {part!r}" for part in expect.get(f"{stream}_lacks", []) if part in text]
        if len(text) > expect.get(f"{stream}_max", len(text)):
            problems.append(f"{stream} is {len(text)} long")
    if expect.get("truncated") and not result.truncated_stdout:
        problems.append("not marked as truncated")
    within = LIMIT_S + expect.get("within_s", 20.0) + SLOW_START_S
    if outcome.took > within:
        problems.append(f"took {outcome.took:.2f} s, allowed {within} s")
    return problems if outcome.alive == "alive" else [*problems, f"then the tool said {outcome.alive!r}"]


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _working_folder(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
