"""Metrics of a benchmark: each is a reward, of this package or of another one, asked for one rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ramet import ConfigError, InfraError, Reward, Rollout, Score, Services, Task, reward_named
from ramet_benchmarks.config import JudgeConfig

JUDGE = "judge"  # the metric of a language model
JUDGE_OPTIONS = ("server", "prompt", "cache", "max_tokens", "extra")  # of `llm_judge`


def reward_of(name: str, benchmark: str, **options: Any) -> Reward:
    """Build a reward of ramet-rewards. Raises `ConfigError` that says what to install."""
    try:
        return reward_named(name, options)
    except ConfigError as error:
        raise ConfigError(
            f"benchmarks.{benchmark} is scored by the reward {name!r} of ramet-rewards "
            f"(pip install 'ramet-benchmarks[scorers]'): {error}"
        ) from error


def chosen_reward(name: str, options: Mapping[str, Any], where: str) -> Reward:
    """Build a reward that the user chose with the option `where`. Raises `ConfigError` that begins with it."""
    try:
        return reward_named(name, options, key=where)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


class Metrics:
    """Rewards by metric, the main one first. With a judge that is `judge`, the only one that may be *not judged*."""

    def __init__(self, rewards: Mapping[str, Reward], judge: JudgeConfig, benchmark: str) -> None:
        asked: dict[str, Reward] = {}
        if judge.ask:
            options = {name: getattr(judge, name) for name in JUDGE_OPTIONS}
            asked = {JUDGE: chosen_reward("llm_judge", options, f"benchmarks.{benchmark}.params.judge")}
        self.rewards = {**asked, **rewards}
        self.judged = judge.ask

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.rewards)

    def check_task(self, task: Task) -> str | None:
        """Return why one of the metrics can judge no answer to a task; None if all of them can."""
        for name, reward in self.rewards.items():
            check = getattr(reward, "check_task", None)
            problem = None if check is None else check(task)
            if problem is not None:
                return f"metric {name}: {problem}"
        return None

    async def start(self, services: Services) -> None:
        for reward in self.rewards.values():
            if (start := getattr(reward, "start", None)) is not None:
                await start(services)

    async def aclose(self) -> None:
        for reward in self.rewards.values():
            if (aclose := getattr(reward, "aclose", None)) is not None:
                await aclose()

    async def of(self, rollout: Rollout) -> dict[str, float | None]:
        """Return the value of each metric.

        Raises `InfraError` if one other than the judge's has none: the host failed.
        """
        results = await asyncio.gather(*(reward([rollout]) for reward in self.rewards.values()))
        values = {name: _value(scores[0]) for name, scores in zip(self.rewards, results, strict=True)}
        for name, value in values.items():
            if value is None and name != JUDGE:
                raise InfraError(f"the metric {name} could not be computed")
        return values


def _value(score: float | Score | None) -> float | None:
    return score.value if isinstance(score, Score) else score


def short_answers(benchmark: str, *, normalisation: str = "squad", main: str = "em") -> dict[str, Reward]:
    """Build `em` and `f1` of a short answer, as the data sets of questions define them; `main` comes first."""
    rewards = {name: reward_of(f"qa_{name}", benchmark, normalisation=normalisation) for name in ("em", "f1")}
    return {main: rewards.pop(main), **rewards}
