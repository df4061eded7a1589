"""Options of the rollout step and of the benchmark. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramet import option
from ramet.helpers import AgentOptions


@dataclass(kw_only=True, slots=True)
class VerifiersOptions:
    """An environment of `verifiers`, and the Python that has it."""

    python: str = option("", "path of the Python of the environment that has `verifiers`; required")
    environment: str = option("", "package of the task set, as `eval` of verifiers takes it; required")
    arguments: dict[str, Any] = option(
        factory=dict, help="settings of the environment, as the block [env] of verifiers has them: taskset, agent, …"
    )
    path: list[str] = option(factory=list, help="folders of environment packages that are not installed there")
    load_timeout_s: float = option(600.0, "time-out of loading the environment and its tasks, in seconds", above=0)

    def runs_code(self) -> dict[str, str]:
        """Option -> the interpreter, and what it imports; arguments may name functions and programs."""
        options = {
            "python": self.python,
            "environment": self.environment,
            "arguments": json.dumps(self.arguments) if self.arguments else "",
            "path": ", ".join(self.path),
        }
        return {option: text for option, text in options.items() if text}


@dataclass(kw_only=True, slots=True)
class VerifiersAgentConfig(VerifiersOptions, AgentOptions):
    """The program of a `verifiers` environment as the agent: it runs unchanged, and calls the policy."""


@dataclass(kw_only=True, slots=True)
class VerifiersBenchmarkConfig(VerifiersOptions):
    """The tasks of a `verifiers` environment, scored by its own rewards."""

    n_tasks: int | None = option(
        None, "most tasks of a split; null: all. Required for task sets that have no end", minimum=1
    )
    splits: dict[str, Any] = option(
        factory=dict, help="settings by split, added to `arguments`; empty: the split `test` has all tasks"
    )
    reward_range: list[float] = option(
        factory=lambda: [0.0, 1.0], help="[lowest, highest] reward of an episode; the metric `reward` is 0 and 1 there"
    )
    metrics: list[str] = option(
        factory=list, help="names of more rewards and metrics of the environment to report; their values lie in [0, 1]"
    )

    def __post_init__(self) -> None:
        bounds = self.reward_range
        if not (len(bounds) == 2 and all(map(math.isfinite, bounds)) and bounds[0] < bounds[1]):
            raise ValueError(f"reward_range={bounds}: allowed: [lowest, highest], the first under the second")
        for split, settings in self.splits.items():
            if not isinstance(settings, Mapping):
                raise ValueError(
                    f"splits.{split}={settings!r}: allowed: settings by name, as {{taskset: {{split: train}}}}"
                )
        if "reward" in self.metrics or len(set(self.metrics)) < len(self.metrics):
            raise ValueError(f"metrics={self.metrics}: allowed: names, each once; reward is always there")

    def runs_code(self) -> dict[str, str]:
        """Option -> what it imports or starts; settings of splits are arguments too."""
        code = VerifiersOptions.runs_code(self)
        return code | ({"splits": json.dumps(self.splits)} if self.splits else {})
