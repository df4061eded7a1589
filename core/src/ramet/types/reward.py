"""Rewards score the finished rollouts of one group (hook 6)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ramet.types.rollout import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A reward with its parts. `parts` are logged, not added; `token_rewards` maps response positions to extra reward.

    `masked` leaves the rollout out of statistics and loss on purpose (overlong filtering, say): it counts as
    `rollout/left_out_share`, never as a failure. Its value is recorded, and only validations use it. `reason` says in a
    sentence why the value is what it is; it is recorded and shown in the report, and has no effect.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    token_rewards: Mapping[int, float] = field(default_factory=dict)
    masked: bool = False
    reason: str | None = None


class Reward(Protocol):
    """Hook 6. One score per rollout, in the same order. None: not judged, the rollout is masked.

    `Rollout.task.answer` has the gold answers. Gets only valid rollouts. Raising masks them and is counted; NaN or
    a wrong number of scores stops the run. Optional: `async def start(self, services: Services) -> None` before the
    first call, and `async def aclose(self) -> None` for the end of the run.

    Optional, before anything starts and before `start`: `def check_task(self, task: Task) -> str | None`, why a task
    cannot be judged (no gold answer, or an unreadable one), reported with file and row. And
    `def check_tools(self, tools: Sequence[str]) -> Sequence[str]`, problems of its options with these tool names.

    `per_rollout` True says that a score depends only on its own rollout. The core may then score a rollout as soon as
    it ends, in a group of one (for branch policies with `Need.REWARDS`). Without `start` it may also be called in the
    workers of `cluster=ray`, each of which has its own object and closes it.
    """

    per_rollout: bool = False

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]: ...


class _PerRollout:
    per_rollout = True

    def __init__(self, score: Callable[[Rollout], float | Score | None]) -> None:
        self.user_function = score

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        return [self.user_function(rollout) for rollout in group]


def per_rollout(score: Callable[[Rollout], float | Score | None]) -> Reward:
    """Lift a function of one rollout to a `Reward`. Raises `TypeError` for an async function."""
    if inspect.iscoroutinefunction(score):
        raise TypeError("per_rollout takes a plain function; an async reward is `async def __call__(group)`")
    return _PerRollout(score)
