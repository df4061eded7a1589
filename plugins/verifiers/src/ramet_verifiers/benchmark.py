"""The benchmark `verifiers`: the tasks of an environment, and the scores that its episodes got."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ramet import BenchmarkInfo, ConfigError, Message, Rollout, Task
from ramet_verifiers.agent import KEY
from ramet_verifiers.config import VerifiersBenchmarkConfig
from ramet_verifiers.process import check, list_tasks

PARAMS = "benchmarks.verifiers.params"
ALL = "test"  # the split of all tasks, where no splits are set


class VerifiersBenchmark:
    """`Benchmark`. Rollouts are scored by the environment while they run, so `rollout_step=verifiers` makes them."""

    def __init__(self, config: VerifiersBenchmarkConfig) -> None:
        """Raises `ConfigError` without an environment. Its Python is needed only to load tasks."""
        if not config.environment:
            raise ConfigError(f"{PARAMS}.environment is not set: name a package of an environment")
        self.config = config
        self.info = BenchmarkInfo(
            description=f"an environment of verifiers: {config.environment}",
            splits=tuple(config.splits) or (ALL,),
            metrics=("reward", *config.metrics),
            source="the package of the environment",
            licence="the package's",
        )

    def load(self, split: str, limit: int | None) -> Iterator[Task]:
        """Tasks in the order of the task set; their `metadata` has all data. Raises as `list_tasks` does."""
        check(self.config, PARAMS)
        if split not in self.info.splits:
            raise ConfigError(f"{PARAMS}.splits has no {split!r}; allowed: {', '.join(self.info.splits)}")
        arguments = _merged(self.config.arguments, self.config.splits.get(split, {}))
        most = [n for n in (limit, self.config.n_tasks) if n is not None]
        for task in list_tasks(self.config, arguments, min(most, default=None)):
            yield Task(
                id=f"{self.config.environment}/{split}/{task['data']['idx']}",
                prompt=tuple(Message(**message) for message in task["messages"]),
                data_source=self.config.environment,
                metadata={KEY: {"environment": self.config.environment, "data": task["data"]}},
            )

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        """The reward's place in `reward_range`, and the metrics that are named, None for one that is not a number; 0
        where the program failed.

        Raises `ConfigError` for values that are not in the range.
        """
        scored = next((info[KEY] for info in reversed(rollout.infos) if KEY in info), None)
        if scored is None or not scored["ok"]:
            return dict.fromkeys(self.info.metrics, 0.0)
        named = {**scored["metrics"], **scored["rewards"]}
        lowest, highest = self.config.reward_range
        reward = (_within("reward", scored["reward"], lowest, highest) - lowest) / (highest - lowest)
        scores: dict[str, float | None] = {"reward": reward}
        for name in self.config.metrics:
            if name not in named:
                raise ConfigError(f"{PARAMS}.metrics names {name!r}; the environment has: {', '.join(named)}")
            scores[name] = None if named[name] is None else _within(name, named[name], 0.0, 1.0)
        return scores


def _within(name: str, value: float, lowest: float, highest: float) -> float:
    if not lowest <= value <= highest:
        option = "set reward_range" if name == "reward" else "leave it out of metrics"
        raise ConfigError(f"{name!r} has the value {value}, outside of [{lowest:g}, {highest:g}]: {option} in {PARAMS}")
    return value


def _merged(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with more added, key by key at every depth."""
    merged = dict(settings)
    for name, value in more.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
