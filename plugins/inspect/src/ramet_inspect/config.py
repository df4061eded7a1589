"""Options of the agent and of the benchmark."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet import ConfigError, option
from ramet.helpers import AgentOptions


@dataclass(kw_only=True, slots=True)
class InspectTask:
    """The options that say which task is meant. Both components need them, with equal values."""

    task: str = option("", "the task: FILE.py@NAME, or PACKAGE/NAME of an installed package; required")
    args: dict[str, Any] = option(factory=dict, help="arguments of the task, by name")
    python: str | None = option(
        None,
        "Python of the environment that has inspect_ai, as in inspect-env/bin/python; null: the one that runs Ramet",
    )

    def runs_code(self) -> dict[str, str]:
        """Return the options that name a program or code."""
        options = {"task": self.task, "python": self.python}
        return {option: text for option, text in options.items() if text}

    @property
    def interpreter(self) -> str:
        """The program that `python` names."""
        return sys.executable if self.python is None else str(Path(self.python).expanduser())

    def check(self, where: str) -> None:
        """Raise `ConfigError` without a task; `where` is the section of the configuration."""
        if not self.task:
            raise ConfigError(f"{where}.params.task is empty; give FILE.py@NAME or PACKAGE/NAME")


@dataclass(kw_only=True, slots=True)
class InspectConfig(InspectTask, AgentOptions):
    """The agent `inspect`: it runs samples of an inspect_ai task with the policy as their model."""

    scorer: str | None = option(
        None, "score that is the reward, as NAME, or NAME/KEY of a score with several values; null: the first"
    )
    model_roles: dict[str, str] = option(
        factory=dict, help="other models of the task by role, as Inspect names them: {grader: openai/gpt-5}"
    )
    log_dir: str | None = option(
        None, "folder for Inspect's logs, one .eval file for each rollout; null: none are kept"
    )


@dataclass(kw_only=True, slots=True)
class InspectBenchmarkConfig(InspectTask):
    """The benchmark `inspect`: the samples of an inspect_ai task."""

    n_train: int = option(0, "number of samples that are the split train; the others are the split test", minimum=0)
    seed: int = option(1, "seed of the draw of the samples for train")
