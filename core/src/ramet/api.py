"""Ramet from Python: what `ramet train`, `ramet sft` and `ramet eval` do, for scripts and notebooks.

```python
from ramet.api import compose, rollouts, train

config = compose({"algorithm": "arpo", "model.path": "models/base", "data.train": ["tasks.jsonl"], "tools": [my_tool]})
print(config.text)                      # everything that was composed, as YAML
result = train(config)                  # or train({"algorithm": "arpo", …}), or train(["algorithm=arpo", …])
print(result.metrics["reward/mean"], result.model)
best = max(rollouts(result.run), key=lambda one: one.reward or 0.0)
```

Keys are as on the command line. Mistakes are raised as one `ConfigErrors` that has them all, before anything is
written. A run that was interrupted continues if the same `run.name` is given again. Progress is logged to the logger
`ramet` (`logging.basicConfig(level=logging.INFO)` shows it). All functions may be called where an event loop runs.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from ramet.errors import ConfigError, raise_all
from ramet.helpers import function_tool
from ramet.plugins import OBJECTS, load_plugins
from ramet.plugins.registry import DuplicateName
from ramet.types import Rollout

if TYPE_CHECKING:  # importing this module is as light as importing ramet
    from ramet.config.resolved import Resolved
    from ramet.evaluate.evaluation import EvaluateResult
    from ramet.sft.job import SftResult
    from ramet.train.training import TrainResult

__all__ = [
    "RecordedRollout", "calls", "compose", "evaluate", "frame", "metrics", "results", "rollouts", "run", "runs",
    "scores", "segments", "sft", "train",
]  # fmt: skip
JOBS = {"train": "ramet.train.training", "sft": "ramet.sft.job", "eval": "ramet.evaluate.evaluation"}
Keys: TypeAlias = "Sequence[str] | Mapping[str, Any] | Resolved"


def __dir__() -> list[str]:
    """Return what the module is for: a notebook completes these names."""
    return sorted(__all__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRollout:
    """One rollout of a run, read from its record. `reward` is None if the rollout was masked."""

    step: int  # 0 in an evaluation
    rollout: Rollout
    reward: float | None
    parts: Mapping[str, float]  # unweighted, by reward name (and `name/part`)
    advantages: array[float] | None  # one float32 for each token of the response; None where nothing was trained
    reasons: Mapping[str, str] = field(default_factory=dict)  # why, by reward name, where the reward says it

    def row(self) -> dict[str, Any]:
        """Return the rollout as one row of plain values (docs/python.md has the columns)."""
        scored = importlib.import_module("ramet.rollout.scoring").ScoredRollout(
            rollout=self.rollout, reward=self.reward, parts=self.parts, reasons=self.reasons
        )
        row: dict[str, Any] = _rows().rollout_row(self.step, scored)
        return row


def compose(
    keys: Sequence[str] | Mapping[str, Any],
    *,
    job: str = "train",
    config_dir: str | Path | None = None,
    trust_recipes: Sequence[str | Path] = (),
) -> Resolved:
    """Return the configuration of a job (`train`, `sft` or `eval`) with these keys, checked by type.

    `keys`: a list as on the command line (`["train.steps=3"]`), or a dict (`{"train.steps": 3}`). In a dict the lists
    `tools` and `rewards` may have objects as well as names: a tool, a function that `function_tool` takes, a reward.
    Such an object lives only in this process, so `cluster=ray` refuses it. `config_dir` holds further presets and
    experiments; `trust_recipes` are files of yours there or in `hydra_configs` that may name programs to run, as with
    `--trust-recipe`. Raises `ConfigErrors` with every problem found.
    """
    if isinstance(keys, str):
        raise ConfigError(f"keys must be a list of strings or a dict, got the string {keys!r}; write [{keys!r}]")
    if job not in JOBS:
        raise ConfigError(f"no job {job!r}; allowed: {', '.join(JOBS)}")
    objects: dict[str, Any] = {}
    if isinstance(keys, Mapping):
        keys, objects = _overrides(keys)
    config = importlib.import_module("ramet.config.compose")
    folder = None if config_dir is None else Path(config_dir)
    with importlib.import_module("ramet.config.trust").trusting(map(Path, trust_recipes)):
        resolved: Resolved = config.compose(list(keys), job=job, config_dir=folder)
    if objects and resolved.config.cluster.name == "ray":
        raise ConfigError(
            f"{', '.join(objects)}: cluster=ray: workers are other processes and do not have the objects of this one; "
            "write them into a module, and name it in RAMET_PLUGINS"
        )
    return replace(resolved, given=objects)


def train(keys: Keys) -> TrainResult:
    """Teach a model by reinforcement learning, as `ramet train`. Takes keys as `compose` does, or what it returned."""
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


def rollouts(run: str | Path, *, kind: str = "step") -> Iterator[RecordedRollout]:
    """Yield the rollouts that the run in this folder recorded, in the order of its steps and tasks.

    `kind`: `step` for training steps, `valid` for validations, `eval` for an evaluation. Raises `ConfigError` for a
    folder without such records, and for a record that cannot be read.
    """
    read_records = importlib.import_module("ramet.rollout.record").read_records
    for file in _record_files(Path(run), kind):
        for record in read_records(file):
            for scored in record.group.rollouts:
                yield RecordedRollout(
                    step=record.step,
                    rollout=scored.rollout,
                    reward=scored.reward,
                    parts=scored.parts,
                    advantages=record.advantages.get(scored.rollout.id),
                    reasons=scored.reasons,
                )


def metrics(run: str | Path) -> list[dict[str, float]]:
    """Return one row for each step of the run in this folder: `step`, then its metrics by name (`docs/metrics.md`).

    `frame(metrics(run))` is a table. Raises `ConfigError` for a folder without metrics.
    """
    path = Path(run) / "metrics.jsonl"
    if not path.is_file():
        raise ConfigError(f"{run}: no run with metrics: there is no {path}")
    rows: dict[int, dict[str, float]] = {}
    for line in importlib.import_module("ramet.tracking.jsonl").read_metrics(path):
        rows.setdefault(line.step, {"step": line.step}).update(line.metrics)
    return [rows[step] for step in sorted(rows)]


def calls(run: str | Path, *, kind: str = "step") -> list[dict[str, Any]]:
    """Return one row for each tool call of the run's rollouts: name, arguments, result, seconds, whether it failed and
    why. A call that forks share is in the row of the rollout that made it. Arguments and errors as of `rollouts`.
    """
    return [row for one in rollouts(run, kind=kind) for row in _rows().call_rows(one.step, one.rollout)]


def segments(run: str | Path, *, kind: str = "step") -> list[dict[str, Any]]:
    """Return one row for each segment of the run's rollouts, with its token ids, log-probabilities and entropies as
    lists. A segment that forks share is in the row of their parent. Arguments and errors as of `rollouts`.
    """
    return [row for one in rollouts(run, kind=kind) for row in _rows().segment_rows(one.step, one.rollout)]


def scores(run: str | Path) -> list[dict[str, Any]]:
    """Return one row for each benchmark and metric of an evaluation: the mean over tasks with its 95 % interval (`low`,
    `high`), pass@k, maj@k and counts.

    `run`: its directory or name, or the results file. Raises `ConfigError` for other paths.
    """
    rows: list[dict[str, Any]] = _rows().score_rows(Path(run))
    return rows


def results(run: str | Path) -> list[dict[str, Any]]:
    """Return one row for each rollout of an evaluation: answer, gold answers, scores, texts. `run` and errors
    are as of `scores`.
    """
    rows: list[dict[str, Any]] = _rows().result_rows(Path(run))
    return rows


def runs(folder: str | Path = "runs") -> list[dict[str, Any]]:
    """Return one row for each run in a folder, the newest first: what `ramet runs --json` prints.

    Raises `ConfigError` if there is no such folder.
    """
    list_runs = importlib.import_module("ramet.history.summary").list_runs
    return [summary.row() for summary in list_runs(Path(folder))]


def frame(rows: Iterable[Mapping[str, Any] | RecordedRollout]) -> Any:
    """Return a pandas data frame of rows, or of what `rollouts` yields. Raises `ConfigError` if pandas is missing."""
    try:
        data_frame = importlib.import_module("pandas").DataFrame
    except ModuleNotFoundError as error:
        raise ConfigError("frame: pandas is not installed; pip install pandas") from error
    return data_frame([row.row() if isinstance(row, RecordedRollout) else dict(row) for row in rows])


def run(resolved: Resolved) -> Any:
    """Run the job that the configuration was composed for, and return its result.

    Raises `ConfigError` if the configuration was changed after it was composed: the run would record the old values.
    """
    for key, component in resolved.given.items():  # a later call may have given another of that name
        group, _, name = key.partition(".")
        load_plugins().give(group, name, component)
    composed = compose(
        resolved.overrides, job=resolved.job, config_dir=resolved.config_dir, trust_recipes=resolved.trusted
    )
    changed = [f"{key}: {old!r} -> {new!r}" for key, old, new in _differences("", composed.config, resolved.config)]
    if changed:
        raise ConfigError(
            f"the configuration was changed after it was composed, and the run would record the old values; give the "
            f"new ones to compose: {'; '.join(changed)}"
        )
    resolved = fetched(resolved)
    check_early(resolved)
    return importlib.import_module(JOBS[resolved.job]).run(resolved)


def fetched(resolved: Resolved, *, weights: bool = True) -> Resolved:
    """Return the configuration with local copies of what it names of the Hugging Face hub. Raises `ConfigErrors`."""
    local: Resolved = importlib.import_module("ramet.runs.hub_inputs").fetched(resolved, weights=weights)
    return local


def check_early(resolved: Resolved) -> None:
    """Raise `ConfigErrors` for what can be known before torch is imported, which takes seconds."""
    raise_all(importlib.import_module("ramet.planning.early").early_problems(resolved))


def _resolved(keys: Keys, job: str) -> Resolved:
    if isinstance(keys, Sequence | Mapping):
        return compose(keys, job=job)
    if keys.job != job:
        raise ConfigError(f"this configuration was composed for the job {keys.job!r}, not for {job!r}")
    return keys


def _rows() -> ModuleType:
    return importlib.import_module("ramet.history.rows")


def _differences(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, old value, new value) for the fields of two configurations that differ."""
    if type(old) is type(new) and is_dataclass(old):
        pairs = {field.name: (getattr(old, field.name), getattr(new, field.name)) for field in fields(old)}
    elif isinstance(old, dict) and isinstance(new, dict):
        pairs = {name: (old.get(name), new.get(name)) for name in {**old, **new}}
    else:
        if old != new:
            yield path.lstrip("."), old, new
        return
    for name, (old_value, new_value) in pairs.items():
        yield from _differences(f"{path}.{name}", old_value, new_value)


def _record_files(run: Path, kind: str) -> list[Path]:
    if kind == "eval":
        rollouts_path = importlib.import_module("ramet.evaluate.files").rollouts_path
        files = [path for path in [rollouts_path(run / "results.json")] if path.is_file()]
    elif kind in ("step", "valid"):
        recorded = importlib.import_module("ramet.rollout.record_files").recorded_files(run)
        files = [file.path for file in recorded if file.kind == kind]
    else:
        raise ConfigError(f"no kind of rollouts {kind!r}; allowed: step, valid, eval")
    if not files:
        raise ConfigError(f"{run}: no recorded rollouts of kind {kind!r} (working directory: {Path.cwd()})")
    return files


def _overrides(keys: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the overrides of a dict, and its objects as they are registered here, by key (`tools.NAME`)."""
    override = importlib.import_module("ramet.config.hydra_adapter").override
    texts, objects = list[str](), dict[str, Any]()
    for key, value in keys.items():
        if key in OBJECTS and isinstance(value, list | tuple):
            pairs = [(item, None) if isinstance(item, str) else _named(key, item) for item in value]
            value = [name for name, _ in pairs]
            if twice := sorted({name for name in value if value.count(name) > 1}):
                raise ConfigError(f"{key}: there are two called {', '.join(map(repr, twice))}; rename one")
            for name, component in pairs:
                if component is not None:
                    _register(key, name, component)
                    objects[f"{key}.{name}"] = component
        texts.append(override(key, value))
    return texts, objects


def _named(group: str, component: Any) -> tuple[str, Any]:
    """Return the name of an object and the component that it is: a function for `tools` becomes a tool."""
    if group == "rewards":
        function = getattr(component, "user_function", component)  # of `per_rollout`
        return getattr(function, "__name__", type(component).__name__).lower(), component
    try:
        tool = component if hasattr(component, "schema") else function_tool(component)
    except TypeError as error:
        raise ConfigError(f"tools: {component!r} cannot be a tool: {error}") from error
    return tool.schema.name, tool


def _register(group: str, name: str, component: Any) -> None:
    """The same name in a later call replaces it, as a notebook's cell does."""
    try:
        load_plugins().give(group, name, component)
    except DuplicateName as error:
        plugin = getattr(load_plugins().registries, group).get(name).plugin
        raise ConfigError(
            f"{group}: the name {name!r} is taken by the plugin {plugin!r}; rename your object"
        ) from error
