"""Scoring: finished groups become scored groups. An unjudged rollout is masked, never scored 0.

`data_source` chooses the rewards (`rewards.NAME.sources`). Each is clipped, weighted and added, or multiplies the sum
of those that are added (`rewards.NAME.combine`), and every part is kept.
A reward that raises or times out masks the rollouts that it was given, and is counted; more than its `max_unjudged` of
a step, and at least four, stop the run. `InfraError` is tried again first (`retries`). A score may leave its rollout
out on purpose (`Score.masked`), which is not a failure.
NaN or a wrong number of scores stops it at once and names plugin and task.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from ramet.errors import ConfigError, InfraError, PluginError
from ramet.event_loop import is_cancelled
from ramet.io import repeats
from ramet.plugins.lifecycle import close_component
from ramet.plugins.output_checks import as_number, score_problem, scores_problem
from ramet.plugins.plugin_code import defined_at, failed, named, raised_at
from ramet.rollout.faults import DEFECT, is_defect
from ramet.rollout.tools.runner import BACKOFF_S, MAX_BACKOFF_S
from ramet.types import Fault, Group, Reward, Rollout, RolloutScore, Score, Task

logger = logging.getLogger(__name__)
T = TypeVar("T")
FEW = 3  # so many failures never stop a run: of 16 rollouts, one is more than 5 %
UNJUDGED = "reward:"  # how `Fault.where` begins if a reward failed on a rollout that had no fault


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """A rollout with its reward, which is None exactly if the rollout is not valid (`fault`, `left_out`)."""

    rollout: Rollout
    reward: float | None
    parts: Mapping[str, float] = field(default_factory=dict)  # clipped, unweighted, by reward name (and `name/part`)
    token_rewards: Mapping[int, float] = field(default_factory=dict)  # by response position
    reasons: Mapping[str, str] = field(default_factory=dict)  # `Score.reason` by reward name

    @property
    def score(self) -> float | None:
        """The rollout's reward and its token rewards together; None where it is not valid."""
        return None if self.reward is None else self.reward + sum(self.token_rewards.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """A group whose rollouts are scored, in the group's order."""

    task: Task
    rollouts: tuple[ScoredRollout, ...]

    @property
    def valid(self) -> tuple[ScoredRollout, ...]:
        return tuple(r for r in self.rollouts if r.reward is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedReward:
    """One configured reward."""

    name: str
    plugin: str  # for messages
    reward: Reward
    weight: float = 1.0
    clip: tuple[float, float] | None = None  # lowest and highest value, before the weight
    multiplies: bool = False  # the sum of those that do not is multiplied by weight x value
    sources: frozenset[str] | None = None
    timeout_s: float = 600.0  # of one attempt
    retries: int = 2  # only after `InfraError`
    max_unjudged: float = 0.05  # share of a step's rollouts that it may fail to score

    def __str__(self) -> str:
        return f"{self.name} for {'all sources' if self.sources is None else ', '.join(sorted(self.sources))}"

    def applies_to(self, task: Task) -> bool:
        return self.sources is None or task.data_source in self.sources


class Scorer:
    """Scores groups. It counts nothing: what rewards failed to judge is in the scored groups (`n_unjudged`)."""

    def __init__(self, rewards: Sequence[WeightedReward]) -> None:
        self.rewards = list(rewards)

    def applies_to(self, task: Task) -> bool:
        """Whether any reward scores this task."""
        return any(reward.applies_to(task) for reward in self.rewards)

    def task_problem(self, task: Task) -> str | None:
        """Why one of the rewards that apply cannot judge a task, whatever is answered; None if all of them can.

        Raises `PluginError` if a reward's `check_task` fails.
        """
        for reward in self.rewards:
            check = getattr(reward.reward, "check_task", None)
            if check is None or not reward.applies_to(task):
                continue
            problem: str | None = _asked(reward, "check_task", partial(check, task))
            if not isinstance(problem, str | None):
                raise PluginError(
                    f"reward {reward.name!r} of plugin {reward.plugin!r}: check_task returned {problem!r}: return "
                    f"None, or a text that says why the task cannot be judged{defined_at(reward.reward, 'check_task')}"
                )
            if problem is not None:
                return f"rewards.{reward.name}: {problem}"
        return None

    def tool_problems(self, tools: Sequence[str]) -> list[str]:
        """The rewards' problems with the names of all tools. Raises `PluginError` if one's `check_tools` fails."""
        problems = []
        for reward in self.rewards:
            check = getattr(reward.reward, "check_tools", None)
            if check is not None:
                reward_problems: Sequence[str] = _asked(reward, "check_tools", partial(check, tools))
                if not isinstance(reward_problems, list | tuple) or not all(
                    isinstance(problem, str) for problem in reward_problems
                ):
                    raise PluginError(
                        f"reward {reward.name!r} of plugin {reward.plugin!r}: check_tools returned "
                        f"{reward_problems!r:.200}: return a list of texts, [] for nothing"
                        f"{defined_at(reward.reward, 'check_tools')}"
                    )
                problems += [f"rewards.{reward.name}.params.{problem}" for problem in reward_problems]
        return problems

    async def score(self, group: Group, *, leave_out: bool = True) -> ScoredGroup:
        """`leave_out` False: a rollout that a reward leaves out of training (`Score.masked`) keeps its value as its
        reward.

        Raises `PluginError` if a reward breaks the contract, `ConfigError` if no reward applies to the task."""
        valid = tuple(rollout for rollout in group.valid if rollout.id not in group.scores)
        applicable = [r for r in self.rewards if r.applies_to(group.task)]
        if all(reward.multiplies for reward in applicable):
            none = "none that adds applies" if applicable else "none applies"
            raise ConfigError(
                f"rewards: {none} to task {group.task.id!r} of data source {group.task.data_source!r}; "
                f"configured: {', '.join(map(str, self.rewards)) or 'none'} (see rewards.NAME.sources)"
            )
        columns = await asyncio.gather(*(self._run(reward, valid) for reward in applicable)) if valid else []
        merged = {
            rollout.id: _merge(rollout, applicable, [column[i] for column in columns], leave_out=leave_out)
            for i, rollout in enumerate(valid)
        }
        merged |= {r.id: scored_before(r, group.scores[r.id]) for r in group.rollouts if r.id in group.scores}
        scored = tuple(merged.get(r.id, ScoredRollout(rollout=r, reward=None)) for r in group.rollouts)
        return ScoredGroup(task=group.task, rollouts=scored)

    async def score_rollout(self, rollout: Rollout) -> RolloutScore:
        """One rollout by itself, while its group runs. Raises as `score` does."""
        if not rollout.valid:
            return RolloutScore(reward=None, fault=rollout.fault, left_out=rollout.left_out)
        (scored,) = (await self.score(Group(task=rollout.task, rollouts=(rollout,)))).rollouts
        return score_of(scored)

    async def aclose(self) -> None:
        """Let rewards end their processes and connections. Exceptions are logged."""
        for weighted in self.rewards:
            await close_component(weighted.reward, f"reward {weighted.name} of plugin {weighted.plugin}")

    async def _run(self, reward: WeightedReward, rollouts: Sequence[Rollout]) -> list[Score | Fault]:
        for attempt in range(reward.retries):
            try:
                return await self._attempt(reward, rollouts)
            except InfraError as error:
                logger.debug("reward %s is asked again: %s", reward.name, error)
                asked_s = min(error.retry_after_s or 0.0, reward.timeout_s)
                await asyncio.sleep(max(asked_s, min(MAX_BACKOFF_S, BACKOFF_S * 2**attempt)))
        try:
            return await self._attempt(reward, rollouts)
        except InfraError as error:
            times = f" ({reward.retries + 1} attempts)" if reward.retries else ""
            return _unjudged(reward, rollouts, f"{error!r}{raised_at(error)}{times}")

    async def _attempt(self, reward: WeightedReward, rollouts: Sequence[Rollout]) -> list[Score | Fault]:
        """Raises `InfraError` for what may work a moment later, `PluginError` and `ConfigError` for what never does."""
        deadline = asyncio.timeout(reward.timeout_s)
        try:
            async with deadline:
                raw = await reward.reward(rollouts)
        except PluginError as error:
            raise failed(error, f"reward {reward.name!r} of plugin {reward.plugin!r}") from error
        except InfraError as error:
            wait_s = error.retry_after_s
            if wait_s is not None and (isinstance(wait_s, bool) or not isinstance(wait_s, int | float)):
                wrong = f"raised an InfraError with retry_after_s={wait_s!r:.80}: give seconds as a number"
                raise _broken(reward, rollouts[0].task, wrong) from error
            if deadline.expired():  # its own word for it: not asked again, that would take as long
                return _unjudged(reward, rollouts, f"timed out after {reward.timeout_s:g} s")
            raise
        except ConfigError as error:
            who = f"reward {reward.name!r} of plugin {reward.plugin!r}"
            raise named(error, who, f"rewards.{reward.name}") from error
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # its rollouts are masked and counted
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            if deadline.expired():
                return _unjudged(reward, rollouts, f"timed out after {reward.timeout_s:g} s")
            return _unjudged(reward, rollouts, f"{error!r}{raised_at(error)}", defect=is_defect(error))
        problem = scores_problem(raw, len(rollouts))
        if problem is not None:
            raise _broken(reward, rollouts[0].task, problem)
        return [_checked(value, reward, rollout) for value, rollout in zip(raw, rollouts, strict=True)]


def _unjudged(
    reward: WeightedReward, rollouts: Sequence[Rollout], what: str, *, defect: bool = False
) -> list[Score | Fault]:
    """Log the failure, and return the faults of the rollouts that the reward was given."""
    message, kind = "reward %s of plugin %s failed: %s", f"reward {reward.name} failed"
    trace = logger.isEnabledFor(logging.DEBUG)
    repeats.warn(logger, kind, message, reward.name, reward.plugin, what, trace=trace)
    where = f"{UNJUDGED}{DEFECT if defect else ''}{reward.name}"
    return [Fault(where=where, message=what)] * len(rollouts)


def _asked(reward: WeightedReward, method: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Exception as error:
        raise failed(error, f"reward {reward.name!r} of plugin {reward.plugin!r}", f" in {method}") from error


def score_of(scored: ScoredRollout) -> RolloutScore:
    """Return all that scoring has added to a rollout."""
    return RolloutScore(
        reward=scored.reward,
        parts=scored.parts,
        token_rewards=scored.token_rewards,
        reasons=scored.reasons,
        fault=scored.rollout.fault,
        left_out=scored.rollout.left_out,
    )


def scored_before(rollout: Rollout, score: RolloutScore) -> ScoredRollout:
    """Return the rollout with a score of `score_of`."""
    return ScoredRollout(
        rollout=replace(rollout, fault=score.fault, left_out=score.left_out),
        reward=score.reward,
        parts=score.parts,
        token_rewards=score.token_rewards,
        reasons=score.reasons,
    )


def n_unjudged(groups: Iterable[ScoredGroup]) -> int:
    """How many rollouts had no fault and then were not judged, because a reward failed or returned None."""
    return sum(fault.where.startswith(UNJUDGED) for fault in _faults(groups) if fault is not None)


def check_failures(groups: Sequence[ScoredGroup], rewards: Sequence[WeightedReward]) -> None:
    """Raise if a reward failed on more than three rollouts and `max_unjudged` of what rewards were given.

    `PluginError` if that was mostly a mistake in its code, which a resume would meet again, otherwise `InfraError`.
    """
    unjudged = [fault for fault in _faults(groups) if fault is not None and fault.where.startswith(UNJUDGED)]
    seen = len(unjudged) + sum(fault is None for fault in _faults(groups))
    for reward in rewards:
        of_reward = [
            fault for fault in unjudged if fault.where in (UNJUDGED + reward.name, UNJUDGED + DEFECT + reward.name)
        ]
        if len(of_reward) <= FEW or len(of_reward) / seen <= reward.max_unjudged:
            continue
        (where, message), _ = Counter((fault.where, fault.message) for fault in of_reward).most_common(1)[0]
        raise (PluginError if DEFECT in where else InfraError)(
            f"reward {reward.name!r} of plugin {reward.plugin!r} could not judge {len(of_reward)} of {seen} rollouts "
            f"of this step (limit rewards.{reward.name}.max_unjudged={reward.max_unjudged:g}); most often: {message}"
        )


def _faults(groups: Iterable[ScoredGroup]) -> Iterator[Fault | None]:
    return (scored.rollout.fault for group in groups for scored in group.rollouts)


def _broken(reward: WeightedReward, task: Task, problem: str) -> PluginError:
    where = defined_at(reward.reward)
    return PluginError(f"reward {reward.name!r} of plugin {reward.plugin!r}, task {task.id!r}: {problem}{where}")


def _checked(value: object, reward: WeightedReward, rollout: Rollout) -> Score | Fault:
    """The score with all its numbers as finite floats. Raises `PluginError` otherwise."""
    if value is None:
        return Fault(where=f"{UNJUDGED}{reward.name}", message="not judged")
    problem = score_problem(value, rollout)
    if problem is not None:
        raise _broken(reward, rollout.task, problem)
    score = value if isinstance(value, Score) else Score(value=value)  # type: ignore[arg-type]
    low, high = reward.clip or (-math.inf, math.inf)
    return Score(
        value=min(max(_float(score.value), low), high),
        parts={name: _float(part) for name, part in score.parts.items()},
        token_rewards={position: _float(extra) for position, extra in score.token_rewards.items()},
        masked=bool(score.masked),
        reason=score.reason,
    )


def _float(value: object) -> float:
    number = as_number(value)
    assert number is not None  # it was checked
    return number


def _merge(
    rollout: Rollout, rewards: Sequence[WeightedReward], scores: Sequence[Score | Fault], *, leave_out: bool
) -> ScoredRollout:
    """Rewards for tokens are added as they are, with their weight: a multiplier applies to complete rollouts."""
    fault = next((s for s in scores if isinstance(s, Fault)), None)
    if fault is not None:
        return ScoredRollout(rollout=replace(rollout, fault=fault), reward=None)
    total, factor, left_out = 0.0, 1.0, None
    parts: dict[str, float] = {}
    tokens: dict[int, float] = {}
    reasons: dict[str, str] = {}
    for reward, score in zip(rewards, scores, strict=True):
        assert isinstance(score, Score)
        left_out = left_out or (f"reward:{reward.name}" if score.masked and leave_out else None)
        if reward.multiplies:
            factor *= reward.weight * score.value
        else:
            total += reward.weight * score.value
        parts[reward.name] = score.value
        parts.update({f"{reward.name}/{name}": part for name, part in score.parts.items()})
        for position, value in score.token_rewards.items():
            tokens[position] = tokens.get(position, 0.0) + reward.weight * value
        if score.reason:
            reasons[reward.name] = score.reason
    if left_out is not None:
        return ScoredRollout(rollout=replace(rollout, left_out=left_out), reward=None, parts=parts, reasons=reasons)
    reward_sum = total * factor
    return ScoredRollout(rollout=rollout, reward=reward_sum, parts=parts, token_rewards=tokens, reasons=reasons)
