"""The check of rollout steps tries environments: their states fork, and everything that they tell can be recorded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from ramet import Insert, RolloutState, StepContext, StepResult, StopReason, Task, Untrusted
from ramet.testing import check_rollout_step


class Climb:
    """Each turn goes up one; it never ends by itself. The state is a list so that a shallow copy shares it."""

    forks = "copy"

    def __init__(self) -> None:
        self.left_open = 0
        self.finished = 0

    def system_prompt(self, tools: Any) -> str:
        return "climb"

    async def open(self, task: Task, seed: int) -> dict[str, list[int]]:
        self.left_open += 1
        return {"at": [seed]}

    async def fork(self, state: dict[str, list[int]]) -> dict[str, list[int]]:
        self.left_open += 1
        return {"at": list(state["at"])}

    async def close(self, state: dict[str, list[int]]) -> None:
        self.left_open -= 1

    async def begin(self, state: dict[str, list[int]]) -> Sequence[Insert]:
        return [Untrusted(text=f"at {state['at'][0]}")]

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        await ctx.generate(stop=["1"])
        state.environment["at"][0] += 1
        return StepResult(insert=(Untrusted(text=f"at {state.environment['at'][0]}"),), reward=0.1)

    async def finish(self, state: dict[str, list[int]], stop: StopReason) -> StepResult | None:
        self.finished += 1
        return StepResult(info={"end": state["at"][0], "stop": stop})


@pytest.mark.parametrize("forks", ["copy", "replay", "none"])
def test_every_state_of_a_good_environment_is_closed_and_it_need_not_end_by_itself(forks: str) -> None:
    climb = Climb()
    climb.forks = forks
    check_rollout_step(climb)
    assert climb.left_open == 0 and climb.finished > 0


class Shallow(Climb):
    async def fork(self, state: dict[str, list[int]]) -> dict[str, list[int]]:
        return dict(state)


class Same(Climb):
    async def fork(self, state: dict[str, list[int]]) -> dict[str, list[int]]:
        return state


class Drifts(Climb):
    forks = "replay"
    opened = itertools.count()

    async def open(self, task: Task, seed: int) -> dict[str, list[int]]:
        return {"at": [next(self.opened)]}


class Opens(Climb):
    async def open(self, task: Task, seed: int) -> Any:
        return None


class NumbersStates(Climb):
    def state_key(self, state: Any) -> Any:
        return 0


class Begins(Climb):
    async def begin(self, state: Any) -> Any:
        return ["at 0"]


class FinishesAgain(Climb):
    async def finish(self, state: Any, stop: StopReason) -> StepResult:
        return StepResult(stop=StopReason.DONE)


class TellsObjects(Climb):
    async def finish(self, state: Any, stop: StopReason) -> StepResult:
        return StepResult(info={"state": object})


class RewardsText(Climb):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        await ctx.generate()
        return StepResult(reward="1")  # type: ignore[arg-type]


class NoClose(Climb):
    close = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Shallow, "fork shares "),
        (Same, "fork returned the state itself: "),
        (
            Drifts,
            "two rollouts of the same task and seed went two ways where the policy wrote ['1', '2', '3', '1', '2', "
            "'3', '1']: a replay cannot work, nor can forks be compared; draw only from the seed that open is given",
        ),
        (Opens, "open returned None: "),
        (NumbersStates, "state_key returned 0: return a string, equal for equal states"),
        (Begins, "begin returned ['at 0']: return a list of Markup and Untrusted, or of Messages only"),
        (FinishesAgain, "finish inserts or stops: the rollout has ended already"),
        (TellsObjects, "finish: info is not a JSON object (Object of type type "),
        (RewardsText, "reward is '1': "),
        (NoClose, "lacks `async def close(state)`"),
    ],
)
def test_a_broken_environment_is_caught(broken: type[Climb], message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_rollout_step(broken())
    assert str(caught.value).startswith(message) and "(core/tests/testing/test_check_environment.py:" in str(
        caught.value
    )
