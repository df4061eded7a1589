"""Complete rollouts of an agent against replies written beforehand, through a real rollout worker: for its check."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ramet.config.schema import RolloutConfig, SystemPrompt
from ramet.engines.protocol import Request
from ramet.plugins.output_checks import agent_problem, agent_value_problem
from ramet.processes import own_reaper, tagged_processes
from ramet.rollout.agents.group import agent_settings
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import Reply, ScriptedEngine, read_request_id, tiny_encoder
from ramet.testing.expect import expect
from ramet.types import Agent, AgentContext, AgentResult, BranchPolicy, Rollout, RolloutStep, Task

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

SEED = 1
DEADLINE_S = 40.0  # of one rollout
GRACE_S = 2.0  # until what was cancelled has ended
REPLY_S = 0.02  # of the policy, so that rollouts overlap
MAX_TURNS = 16
TAG = "RAMET_CONFORMANCE_TAG"  # environment variable of all processes that are started during a check


class Policy(ScriptedEngine):
    """Replies to the first request of a conversation with the first reply, and so on; the last one is repeated.

    So the reply depends on nothing but the request. `fails_from` and `hangs_from` are the number of a request, counted
    from 0, from which on the engine has an outage, or does not answer.
    """

    def __init__(
        self, replies: Sequence[str], encoder: Encoder, *, fails_from: int | None = None, hangs_from: int | None = None
    ) -> None:
        super().__init__({}, encoder)
        self.is_hanging = asyncio.Event()
        self._replies, self._fails_from, self._hangs_from = replies, fails_from, hangs_from
        (self._assistant,) = encoder.markup("<|assistant|>")

    def said(self, request: Request) -> Reply:
        number = len(self.requests) - 1
        if self._hangs_from is not None and number >= self._hangs_from:
            self.is_hanging.set()
            return Reply(text="", first_s=DEADLINE_S)
        fails = self._fails_from is not None and number >= self._fails_from
        asked_before = max(0, request.token_ids.count(self._assistant) - 1)
        text = self._replies[min(asked_before, len(self._replies) - 1)]
        return Reply(text=text, first_s=REPLY_S, fails="the engine is away" if fails else None)

    def requests_of(self, task: Task) -> list[str]:
        """The texts with which a task's rollouts asked."""
        of_task = [request for request in self.requests if read_request_id(request.id)[0].task == task.id]
        return [self.encoder.decode(request.token_ids) for request in of_task]


class WatchedAgent:
    """The agent under test, as the rollout worker gets it; `ends` has how its runs ended."""

    def __init__(self, agent: Agent) -> None:
        self.forks, self.settings = agent.forks, agent_settings(agent)
        self.ends: list[AgentResult | BaseException] = []
        self.problem: str | None = None
        self._agent = agent

    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        running = asyncio.create_task(self._agent.run(task, ctx))
        try:
            result = await asyncio.shield(running)
        except asyncio.CancelledError:
            await self._cancel(running)
            raise
        except (Exception, SystemExit) as error:
            self.ends.append(error)
            raise
        self.problem = self.problem or agent_problem(result) or agent_value_problem(result)
        self.ends.append(result)
        return AgentResult() if self.problem else result

    async def _cancel(self, running: asyncio.Task[AgentResult]) -> None:
        running.cancel()
        await asyncio.wait([running], timeout=GRACE_S)
        if not running.done():
            self.problem = (
                f"run did not end within {GRACE_S:g} s after it was cancelled, as it is at the deadline of its "
                "rollout: let asyncio.CancelledError pass, and end what it waits for"
            )


@dataclass(kw_only=True)
class AgentUnderTest:
    """The agent to be checked, its task and what the policy replies."""

    agent: Agent
    task: Task
    replies: Sequence[str]
    encoder: Encoder = field(default_factory=tiny_encoder)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlay:
    """Rollouts that ended."""

    rollouts: list[Rollout]  # none if they were cancelled
    policy: Policy
    ends: list[AgentResult | BaseException]


async def play(
    subject: AgentUnderTest,
    tasks: Sequence[Task],
    *,
    branch_policy: BranchPolicy | None = None,
    group_size: int = 1,
    fails_from: int | None = None,
    hangs_from: int | None = None,
) -> AgentPlay:
    """Run the agent for tasks, all at once. With `hangs_from` the rollouts are cancelled once the policy hangs.

    Raises `AssertionError` for what its runs returned, and where one does not end.
    """
    policy = Policy(subject.replies, subject.encoder, fails_from=fails_from, hangs_from=hangs_from)
    watched = WatchedAgent(subject.agent)
    worker = RolloutWorker(
        engine=policy,
        encoder=subject.encoder,
        step=cast(RolloutStep, watched),
        branch_policy=branch_policy or NoBranching(),
        tools={},
        config=RolloutConfig(
            group_size=group_size, max_turns=MAX_TURNS, max_response_tokens=100_000, deadline_s=DEADLINE_S
        ),
        system_prompt=SystemPrompt.NEVER,
        seed=SEED,
        deterministic=False,
    )
    running = asyncio.create_task(worker.run(RolloutRequest(tasks=tasks, step=1)))
    hanging = asyncio.create_task(policy.is_hanging.wait())
    try:
        await asyncio.wait([running, hanging], return_when=asyncio.FIRST_COMPLETED)
        for waiting in (running, hanging):
            waiting.cancel()
        await asyncio.wait([running, hanging])
    finally:
        await worker.close()
    expect(watched.problem is None, watched.problem or "")
    groups = [] if running.cancelled() else running.result()
    return AgentPlay(rollouts=[one for group in groups for one in group.rollouts], policy=policy, ends=watched.ends)


@contextmanager
def tagged() -> Iterator[str]:
    """Tag the processes that are started inside, which inherit this process's environment."""
    own_reaper()  # its helper process, which stays, is not one of them
    os.environ[TAG] = uuid.uuid4().hex
    try:
        yield f"{TAG}={os.environ[TAG]}"
    finally:
        del os.environ[TAG]


class Leftovers:
    """Tasks and processes that were not there before a run."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._tasks, self._processes = asyncio.all_tasks(), set(tagged_processes(tag))

    async def check(self, when: str) -> None:
        """Raise `AssertionError` for what is left after `GRACE_S`, which is ended."""
        ends_at = asyncio.get_running_loop().time() + GRACE_S
        while (left := self._left()) and asyncio.get_running_loop().time() < ends_at:
            await asyncio.sleep(0.02)
        for pid in self._new_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        expect(
            not left,
            f"run leaves {', '.join(left)} {when}: end in a `finally` what it started; a run has thousands of rollouts",
        )

    def _left(self) -> list[str]:
        tasks = asyncio.all_tasks() - self._tasks
        coroutines = [getattr(task.get_coro(), "__qualname__", repr(task)) for task in tasks]
        return [
            *(f"the task {name}" for name in coroutines),
            *(f"the process {_command(pid)!r}" for pid in self._new_processes()),
        ]

    def _new_processes(self) -> set[int]:
        return set(tagged_processes(self._tag)) - self._processes


def _command(pid: int) -> str:
    """The command line of a process; its id if it has ended."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text(errors="replace").replace("\0", " ").strip()[:120]
    except OSError:
        return str(pid)
