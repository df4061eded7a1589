"""Check of rewards (hook 6)."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence

from ramet.plugins.output_checks import score_problem, scores_problem
from ramet.testing.checked import checked, crash
from ramet.testing.doubles import answered_rollout, empty_rollout, local_services, written_rollout
from ramet.testing.expect import EventLoopCheck, expect, expect_async, expect_async_call, expect_none
from ramet.types import Reward, Rollout, Score, Task, user_prompt

TASKS = (
    Task(id="conformance/0", prompt=user_prompt("What is 2 + 3?"), answer=("5",), data_source="conformance"),
    Task(
        id="conformance/1",
        prompt=user_prompt("Who wrote Faust?"),
        answer=("Johann Wolfgang von Goethe", "Goethe"),
        data_source="conformance",
    ),
)


@checked()
def check_reward(reward: Reward, *, tasks: Sequence[Task] = TASKS) -> None:
    """Raise `AssertionError` unless the reward keeps the contract.

    One finite number, `Score` or None per rollout, in the group's order. The same scores for the same group. Empty,
    unfinished and tool-using replies are scored too. The group stays unchanged.
    """
    expect_async_call(reward)

    async def check() -> None:
        with local_services() as services:
            if hasattr(reward, "start"):
                expect_async(reward.start, "start")
                await reward.start(services)
            for task in tasks:
                await _check_task(reward, example_group(task))

    asyncio.run(check())


def example_group(task: Task) -> list[Rollout]:
    """Replies of every sort: right, wrong, with a tool, without tags, cut off, empty."""
    gold = task.answer[0]
    used = ["<think>I compute.</think><python>print(1)</python>", f"<answer>{gold}</answer>"]
    return [
        answered_rollout(task, gold),
        written_rollout(task, ["<answer>surely not this</answer>"], answer="surely not this", id="1"),
        written_rollout(task, used, results=["<result>1</result>"], answer=gold, id="2"),
        written_rollout(task, [f"It is {gold}."], id="3"),
        written_rollout(task, ["<think>I was cut o"], id="4"),
        written_rollout(task, [""], id="5"),
    ]


async def _check_task(reward: Reward, group: list[Rollout]) -> None:
    with EventLoopCheck() as guard:
        scores = await _scores(reward, group)
        await guard.turn()
        again = await _scores(reward, group)
        await guard.check()
    expect(again == scores, f"the same group was scored {scores} and then {again}: keep nothing between calls")
    backwards = await _scores(reward, group[::-1])
    expect(
        backwards[::-1] == scores,
        f"the scores do not follow the order of the group: {scores}, but {backwards[::-1]} where the group came "
        "backwards: return them in the order of the rollouts",
    )
    for rollout in (group[0], empty_rollout(group[0].task)):
        await _scores(reward, [rollout])


def _hint(error: BaseException) -> str:
    """A misspelt attribute has nothing to do with the replies."""
    slip = isinstance(error, AttributeError) and isinstance(error.obj, Rollout | Task)
    return "" if slip else ": a reply may be empty, unfinished or without tags"


async def _scores(reward: Reward, group: list[Rollout]) -> list[float | Score | None]:
    copied = copy.deepcopy(group)
    try:
        scores = await reward(copied)
    except (Exception, SystemExit) as error:
        replies = [rollout.response for rollout in group]
        raise AssertionError(f"{crash(error)}, on a group with the replies {replies}{_hint(error)}") from error
    expect(copied == group, "changed the group: rollouts are shared and must stay as they are")
    expect_none(scores_problem(scores, len(group)))
    for score, rollout in zip(scores, group, strict=True):
        expect_none(score_problem(score, rollout))
    return list(scores)
