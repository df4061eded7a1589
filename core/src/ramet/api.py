"""Ramet from Python: what `ramet train`, `ramet sft` and `ramet eval` do, for scripts and notebooks.

```python
from ramet.api import compose, train

config = compose(["algorithm=arpo", "model.path=models/base", "data.train=[tasks.jsonl]", "tools=[python]"])
print(config.text)                      # everything that was composed, as YAML
result = train(config)                  # or train(["algorithm=arpo", …])
print(result.metrics["reward/mean"], result.model)
```

Keys are those of the command line. Mistakes are raised as one `ConfigErrors` that holds them all, before anything is
written. A run that was interrupted goes on if the same `run.name` is given again. Progress is logged to the logger
`ramet` (`logging.basicConfig(level=logging.INFO)` shows it). All functions may be called where an event loop runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ramet.errors import ConfigError, raise_all

if TYPE_CHECKING:  # importing this module is as light as importing ramet
    from ramet.config.resolved import Resolved
    from ramet.evaluate.evaluation import EvaluateResult
    from ramet.sft.job import SftResult
    from ramet.train.training import TrainResult

__all__ = ["compose", "evaluate", "run", "sft", "train"]
JOBS = {"train": "ramet.train.training", "sft": "ramet.sft.job", "eval": "ramet.evaluate.evaluation"}
Keys: TypeAlias = "Sequence[str] | Resolved"


def compose(keys: Sequence[str], *, job: str = "train", config_dir: str | Path | None = None) -> Resolved:
    """The configuration of a job (`train`, `sft` or `eval`) with these keys (`"train.steps=3"`), checked by type.

    `config_dir` holds further presets and experiments. Raises `ConfigErrors` with every problem found.
    """
    if isinstance(keys, str):
        raise ConfigError(f"keys must be a list of strings, got the string {keys!r}; write [{keys!r}]")
    if job not in JOBS:
        raise ConfigError(f"no job {job!r}; allowed: {', '.join(JOBS)}")
    config = importlib.import_module("ramet.config.compose")
    folder = None if config_dir is None else Path(config_dir)
    resolved: Resolved = config.compose(list(keys), job=job, config_dir=folder)
    return resolved


def train(keys: Keys) -> TrainResult:
    """Teach a model by reinforcement learning, as `ramet train`. Takes keys or what `compose` returned."""
    result: TrainResult = run(_resolved(keys, "train"))
    return result


def sft(keys: Keys) -> SftResult:
    """Teach a model from traces, as `ramet sft`."""
    result: SftResult = run(_resolved(keys, "sft"))
    return result


def evaluate(keys: Keys) -> EvaluateResult:
    """Measure a model on benchmarks, as `ramet eval`."""
    result: EvaluateResult = run(_resolved(keys, "eval"))
    return result


def run(resolved: Resolved) -> Any:
    """Run the job that the configuration was composed for, and return its result."""
    check_early(resolved)
    return importlib.import_module(JOBS[resolved.job]).run(resolved)


def check_early(resolved: Resolved) -> None:
    """Raise `ConfigErrors` for what can be known before torch is imported, which takes seconds."""
    raise_all(importlib.import_module("ramet.planning.early").early_problems(resolved))


def _resolved(keys: Keys, job: str) -> Resolved:
    if isinstance(keys, Sequence):
        return compose(keys, job=job)
    if keys.job != job:
        raise ConfigError(f"this configuration was composed for the job {keys.job!r}, not for {job!r}")
    return keys
