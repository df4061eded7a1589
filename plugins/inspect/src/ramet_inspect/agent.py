"""`inspect`: an agent whose runs are samples of an inspect_ai task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from ramet import AgentContext, AgentResult, AgentStatus, ConfigError, InfraError, Task
from ramet_inspect.benchmark import SAMPLE
from ramet_inspect.config import InspectConfig
from ramet_inspect.process import InspectProcess

STEP = "rollout_step"
INSTRUMENT = ("grader_failed", "scoring_failed")  # of Inspect's `ScoreReason`: others are the policy's doing


class InspectAgent:
    """`Agent`. Solver, tools, sandbox and scorers are the task's; the reward is one of its scores."""

    def __init__(self, config: InspectConfig) -> None:
        config.check(STEP)
        self.config = config
        self.forks = cast(Literal["replay", "none"], config.forks)
        self.settings = config.settings
        self._process = InspectProcess(config, STEP)

    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        """Run the task's sample once.

        Raises `InfraError` for an outage, and for a scorer that reports its own failure; `ConfigError` for a task that
        cannot be run so.
        """
        if SAMPLE not in task.metadata:
            raise ConfigError(
                f"task {task.id!r} is not a sample of Inspect: rollout_step=inspect runs tasks of the benchmark "
                "inspect (data.train=[benchmark:inspect/train])"
            )
        log_dir = ctx.folder / "log" if self.config.log_dir is None else Path(self.config.log_dir).expanduser()
        outcome = await self._process.run(
            {
                "sample": task.metadata[SAMPLE],
                "base_url": ctx.base_url,
                "key": ctx.key,
                "model": ctx.model,
                "seconds": ctx.budget.seconds,
                "seed": ctx.seed,
                "log_dir": str(log_dir),
                "cache": str(ctx.folder / "cache"),
                "model_roles": self.config.model_roles,
            }
        )
        return self._result(task, outcome)

    async def aclose(self) -> None:
        """End Inspect's process."""
        self._process.close()

    def _result(self, task: Task, outcome: Mapping[str, Any]) -> AgentResult:
        where = f"sample {task.metadata[SAMPLE]!r} of {self.config.task}"
        if outcome["status"] == "config":
            raise ConfigError(f"{STEP}.params: {where}: {outcome['error']}")
        if outcome["status"] == "infra":
            raise InfraError(f"{where}: {outcome['error']}")
        info: dict[str, Any] = {"scores": outcome["scores"], "limit": outcome["limit"]}
        if self.config.log_dir is not None:
            info["log"] = outcome["log"]
        if outcome["status"] == "failed":
            return _failed(info, outcome["error"])
        name = self._score_name(where, outcome["scores"])
        if (reason := outcome["reasons"].get(name)) in INSTRUMENT:
            raise InfraError(f"{where}: the score {name!r} has the reason {reason}")
        if (reward := outcome["scores"][name]) is None:  # as of a scorer that divides by what the policy wrote
            return _failed(info, f"the score {name!r} is not a number; {STEP}.params.scorer chooses another")
        return AgentResult(answer=outcome["answer"], reward=reward, info={"inspect": {**info, "score": reward}})

    def _score_name(self, where: str, scores: Mapping[str, float | None]) -> str:
        """Return the name of the score that is the reward."""
        if not scores:
            raise ConfigError(f"{STEP}.params.task: {where} has no score: the task needs a scorer")
        name = next(iter(scores)) if self.config.scorer is None else self.config.scorer
        if name not in scores:
            raise ConfigError(f"{STEP}.params.scorer: {where} has no score {name!r}; its scores: {', '.join(scores)}")
        return name


def _failed(info: Mapping[str, Any], error: str) -> AgentResult:
    return AgentResult(info={"inspect": {**info, "error": error}}, status=AgentStatus.FAILED)
