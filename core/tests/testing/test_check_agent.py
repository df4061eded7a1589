"""The check of agents passes good ones and names what is wrong with each broken one."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from core.tests.rollout.agents.conftest import CALL, TOOL

import ramet.testing.agent_play as agent_play
from ramet import AgentContext, AgentResult, AgentStatus, InfraError, Task
from ramet.testing import check_agent

aiohttp = pytest.importorskip("aiohttp", reason="ramet[openai] is not installed")
pytest.importorskip("transformers", reason="ramet[train] is not installed")
Ask = Callable[..., Awaitable[dict[str, Any]]]
REPLIES = (CALL, "The answer is 4.")


class Adds:
    """A good agent: it calls `add` as long as the policy does."""

    forks: Literal["replay", "none"] = "replay"

    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {ctx.key}"}) as http:

            async def ask(messages: list[Any]) -> dict[str, Any]:
                body = {"messages": messages, "tools": [TOOL]}
                async with http.post(f"{ctx.base_url}/chat/completions", json=body, raise_for_status=True) as reply:
                    return dict((await reply.json())["choices"][0]["message"])

            return await self.loop(self.messages(task, ctx), ask)

    def messages(self, task: Task, ctx: AgentContext) -> list[Any]:
        return [{"role": "user", "content": task.question}]

    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        while True:
            said = await ask(messages)
            messages.append(said)
            if not said.get("tool_calls"):
                return AgentResult(answer=said["content"])
            for call in said["tool_calls"]:
                numbers = json.loads(call["function"]["arguments"])
                result = {"role": "tool", "tool_call_id": call["id"], "content": str(numbers["a"] + numbers["b"])}
                messages.append(result)


class AsksInParallel(Adds):
    """Three conversations at once, in any order."""

    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        parts = [[*messages, {"role": "user", "content": f"part {i}"}] for i in range(3)]
        return (await asyncio.gather(*(super(AsksInParallel, self).loop(part, ask) for part in parts)))[0]


class Draws(Adds):
    """Chance rules it, and it says that it cannot be replayed."""

    forks = "none"

    def messages(self, task: Task, ctx: AgentContext) -> list[Any]:
        return [{"role": "user", "content": f"{task.question} {uuid.uuid4()}"}]


class SaysTheTime(Draws):
    forks = "replay"


class NumbersItsRuns(Adds):
    def __init__(self) -> None:
        self.numbers = itertools.count()

    def messages(self, task: Task, ctx: AgentContext) -> list[Any]:
        return [{"role": "user", "content": f"Run {next(self.numbers)}: {task.question}"}]


class ShowsItsFolder(Adds):
    def messages(self, task: Task, ctx: AgentContext) -> list[Any]:
        return [{"role": "user", "content": f"Work in {ctx.folder}."}]


class KeepsItsMessages(Adds):
    """Begins a new list for each run, on the agent: right as long as runs do not overlap."""

    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        self.kept = messages
        while (said := await ask(self.kept)).get("tool_calls"):
            result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "4"}
            self.kept += [said, result]
        return AgentResult(answer=said["content"])


class OffersOtherTools(Adds):
    """The tools of a run depend on how many there were, which the tiny model's prompt does not show."""

    n_runs = 0

    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        return await super().loop(messages, ask)

    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        self.n_runs += 1
        tool = {"type": "function", "function": {**TOOL["function"], "description": f"{self.n_runs}"}}
        body = {"messages": self.messages(task, ctx), "tools": [tool]}
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {ctx.key}"}) as http:
            for _ in range(2):
                async with http.post(f"{ctx.base_url}/chat/completions", json=body, raise_for_status=True) as reply:
                    said = (await reply.json())["choices"][0]["message"]
                calls = said.get("tool_calls") or [{"id": "none"}]
                body["messages"] += [said, {"role": "tool", "tool_call_id": calls[0]["id"], "content": "4"}]
        return AgentResult(answer=said["content"])


class NeverAsks(Adds):
    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        return AgentResult(answer="5")


class ReturnsText(Adds):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        return (await super().loop(messages, ask)).answer  # type: ignore[return-value]


class ReturnsAnObject(Adds):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        return AgentResult(answer=(await super().loop(messages, ask)).answer, info={"agent": object()})


class ReturnsNaN(Adds):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        return AgentResult(answer=(await super().loop(messages, ask)).answer, reward=float("nan"))


class ReturnsANumber(Adds):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        await super().loop(messages, ask)
        return AgentResult(answer=4)  # type: ignore[arg-type]


class Crashes(Adds):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        return AgentResult(answer=(await ask(messages))["no such field"])


class CrashesAtOnce(Adds):
    def messages(self, task: Task, ctx: AgentContext) -> list[Any]:
        return [task.metadata["page"]]


class HasAnOutage(Adds):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        await super().loop(messages, ask)
        raise InfraError("the database is away")


class MakesUpAnswers(Adds):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        try:
            return await super().loop(messages, ask)
        except aiohttp.ClientError:
            return AgentResult(answer="I do not know.")


class GivesUp(Adds):
    """Says that it failed: no answer is made up."""

    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        try:
            return await super().loop(messages, ask)
        except aiohttp.ClientError:
            return AgentResult(status=AgentStatus.FAILED)


class AsksForEver(Adds):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        while True:
            try:
                return await super().loop(list(messages), ask)
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)


class IgnoresCancellation(Adds):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        try:
            return await super().loop(messages, ask)
        except asyncio.CancelledError:
            await asyncio.sleep(60)
            raise


class LeavesATask(Adds):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        self.watch = asyncio.create_task(self.watching())
        result = await super().loop(messages, ask)
        self.watch.cancel()
        return result

    async def watching(self) -> None:
        await asyncio.sleep(60)


class NeverEndsItsTask(LeavesATask):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        self.watch = asyncio.create_task(self.watching())
        return await Adds.loop(self, messages, ask)


class LeavesAProcess(Adds):
    async def loop(self, messages: list[Any], ask: Ask) -> AgentResult:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        result = await super().loop(messages, ask)
        process.kill()
        process.wait()
        return result


class CallsItself(Adds):
    async def __call__(self) -> None: ...


@pytest.mark.parametrize("good", [Adds, AsksInParallel, Draws, GivesUp])
def test_a_good_agent_passes(good: type) -> None:
    check_agent(good(), replies=REPLIES)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            SaysTheTime,
            r"other requests for the same task and seed: request 1 differs: after '.*2 \+ 3\? \w*' it has '\S+",
        ),
        (NumbersItsRuns, "after '.*Run ' it has '1: What is .*', not '0: What is .*declare forks = 'none'"),
        (ShowsItsFolder, "request 1 differs: after .*leave times, new ids and ctx.folder out of requests"),
        (
            KeepsItsMessages,
            "runs that overlap disturb each other: a request that ends with .* was not made .crashed with ClientRes",
        ),
        (OffersOtherTools, "a fork could not be run: .*another request in turn 0 .*: it offers other tools"),
        (NeverAsks, "run never asks the policy, .* send requests to ctx.base_url"),
        (ReturnsText, "run returned 'The answer is 4.': return an AgentResult"),
        (ReturnsAnObject, "info of the result is not a JSON object"),
        (ReturnsNaN, "reward of the result is nan"),
        (ReturnsANumber, "answer of the result is 4: give a string"),
        (Crashes, "crashed with KeyError: 'no such field' .*where the policy wrote"),
        (CrashesAtOnce, "crashed with KeyError: 'page' .*before any request"),
        (HasAnOutage, "crashed with InfraError: the database is away"),
        (MakesUpAnswers, "answer='I do not know.'.* although the policy could not be asked"),
        (IgnoresCancellation, "run did not end within 0.3 s after it was cancelled"),
        (LeavesATask, "leaves the task LeavesATask.watching when it is cancelled"),
        (NeverEndsItsTask, "leaves the task LeavesATask.watching after it returned"),
        (LeavesAProcess, "leaves the process '.*time.sleep.*' when it is cancelled"),
        (CallsItself, "can be called itself"),
        (AsksForEver, "did not end within 2 s of an outage of the policy"),
    ],
)
def test_a_broken_agent_is_caught(broken: type, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_play, "GRACE_S", 0.3)
    if broken is AsksForEver:
        monkeypatch.setattr(agent_play, "DEADLINE_S", 2.0)
        monkeypatch.setattr("ramet.testing.agent.DEADLINE_S", 2.0)
    with pytest.raises(AssertionError) as caught:
        check_agent(broken(), replies=REPLIES)
    assert re.search(message, str(caught.value), re.DOTALL)
    assert "core/tests/testing/test_check_agent.py:" in str(caught.value)
