"""Check of agents (hook 1, second form): complete rollouts through a real rollout worker and its gateway."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ramet.plugins.component_checks import is_agent, misfits
from ramet.rollout.branching.builtin import RandomBranching
from ramet.rollout.config import RandomBranchConfig
from ramet.rollout.gateway.messages import text_difference
from ramet.testing.agent_play import DEADLINE_S, AgentPlay, AgentUnderTest, Leftovers, play, tagged
from ramet.testing.checked import checked, crash
from ramet.testing.expect import EventLoopCheck, expect
from ramet.testing.step_play import TASK
from ramet.types import Agent, AgentResult, AgentStatus, StopReason, Task

REPLIES = ("The answer is 5.",)
N_FORKS = 3
SHOWN = 60  # characters of a request in messages
EQUAL_REQUESTS = (
    "leave times, new ids and ctx.folder out of requests, draw only by ctx.seed, keep nothing on the agent, or declare "
    "forks = 'none'"
)


@checked("run")
def check_agent(agent: Agent, *, task: Task = TASK, replies: Sequence[str] = REPLIES) -> None:
    """Raise `AssertionError` unless the agent keeps the contract.

    Asks the policy, and returns an `AgentResult` that can be recorded. Keeps nothing between runs, also not between
    runs at the same time. Makes no answer of an outage of the policy. Ends when it is cancelled, and leaves no tasks
    and no processes. With `forks="replay"` two runs of one task and seed make the same requests, and forks are
    answered from the record.

    `task`: one that the agent can work on. `replies`: what the policy writes, for the first request of a conversation,
    the second and so on; the last one is repeated. Calls of tools have the form of `hermes`,
    `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: with one of each tool the agent is exercised completely.

    Needs `ramet[train,openai]`.
    """
    expect(is_agent(agent), "lacks `async def run(task, ctx)`, or can be called itself: give an object with `run`")
    expect(bool(replies), "replies is empty: give at least one text that the policy writes")
    for problem in misfits(agent, "rollout step"):
        raise AssertionError(problem)
    with tagged() as tag:
        asyncio.run(_check_runs(AgentUnderTest(agent=agent, task=task, replies=tuple(replies)), tag))


async def _check_runs(subject: AgentUnderTest, tag: str) -> None:
    with EventLoopCheck() as guard:
        first = await _completed(subject, subject.task)
        await guard.turn()
        before = Leftovers(tag)  # what the first run left may be kept for all
        again = await _completed(subject, subject.task)
        await before.check("after it returned")
        await guard.check()
    difference = _difference(first.policy.requests_of(subject.task), again.policy.requests_of(subject.task))
    if subject.agent.forks == "replay":
        expect(
            difference is None,
            f"run made other requests for the same task and seed: {difference}; a fork could not be answered from the "
            f"record: {EQUAL_REQUESTS}",
        )
    if difference is None:  # otherwise nothing can be compared
        await _check_overlap(subject, first)
    if subject.agent.forks == "replay":
        await _check_forks(subject)
    last = len(first.policy.requests) - 1
    await _check_outage(subject, last)
    before = Leftovers(tag)
    await play(subject, [subject.task], hangs_from=last)
    await before.check("when it is cancelled")


async def _completed(subject: AgentUnderTest, task: Task) -> AgentPlay:
    """One rollout to its end, which nothing masks."""
    played = await play(subject, [task])
    [rollout], end = played.rollouts, played.ends[-1] if played.ends else None
    if isinstance(end, BaseException) and rollout.stop not in (StopReason.TURN_LIMIT, StopReason.LENGTH):
        where = f"where the policy wrote {list(subject.replies)}" if played.policy.requests else "before any request"
        raise AssertionError(f"{crash(end)}, {where}") from end
    expect(
        bool(played.policy.requests),
        "run never asks the policy, so there is nothing to train: send requests to ctx.base_url with the key ctx.key "
        "(programs find them in ctx.environ())",
    )
    expect(rollout.fault is None, f"run was masked: {rollout.fault and rollout.fault.message}")
    return played


async def _check_overlap(subject: AgentUnderTest, alone: AgentPlay) -> None:
    """Two rollouts of different tasks, at the same time, make the requests that each makes by itself."""
    *before, question = subject.task.prompt
    changed = replace(question, content=f"{question.content} Answer in one word.")
    other = replace(subject.task, id=f"{subject.task.id}/other", prompt=(*before, changed))
    plays = [(subject.task, alone), (other, await _completed(subject, other))]
    together = await play(subject, [subject.task, other])
    for task, played in plays:
        difference = _difference(played.policy.requests_of(task), together.policy.requests_of(task))
        crashed = next((f" ({crash(end)})" for end in together.ends if isinstance(end, BaseException)), "")
        expect(
            difference is None,
            f"runs that overlap disturb each other: {difference}{crashed}; keep what belongs to a run in local "
            "variables",
        )


async def _check_forks(subject: AgentUnderTest) -> None:
    """Fork after each turn: the runs of forks are answered from the record."""
    policy = RandomBranching(RandomBranchConfig(initial_rollouts=1, probability=1.0))
    played = await play(subject, [subject.task], branch_policy=policy, group_size=1 + N_FORKS)
    for rollout in played.rollouts:
        fault = rollout.fault
        expect(fault is None, f"a fork could not be run: {fault and fault.message}; {EQUAL_REQUESTS}")


async def _check_outage(subject: AgentUnderTest, last: int) -> None:
    """The policy cannot be asked from the last request on: no answer comes of that."""
    played = await play(subject, [subject.task], fails_from=last)
    expect(
        bool(played.ends),
        f"run did not end within {DEADLINE_S:g} s of an outage of the policy: give up after some tries",
    )
    for end in played.ends:
        made_up = isinstance(end, AgentResult) and end.status is AgentStatus.DONE and end.answer is not None
        expect(
            not made_up,
            f"run returned {end!r:.200} although the policy could not be asked: let the error of the request pass, or "
            "raise InfraError, also where a service of its own is away",
        )


def _difference(some: Sequence[str], others: Sequence[str]) -> str | None:
    """Say where requests differ, whatever their order: runs may have several conversations at once."""
    counts, other_counts = Counter(some), Counter(others)
    missing, extra = [*(counts - other_counts).elements()], [*(other_counts - counts).elements()]
    if not missing and not extra:
        return None
    if not missing or not extra:
        [ends, *_], when = missing or extra, "not made" if missing else "made, too"
        return f"a request that ends with {ends[-SHOWN:]!r} was {when}"
    return f"request {some.index(missing[0]) + 1} differs: {text_difference(missing[0], extra[0])}"
