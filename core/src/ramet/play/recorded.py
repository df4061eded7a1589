"""The recorded rollouts of a run, with what is needed to run them again: tasks, plans and seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from torch import Tensor

from ramet.components.build import Components
from ramet.components.checks import check_played
from ramet.components.toolbox import ToolNames
from ramet.config.checks import check
from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.errors import ConfigError, raise_all
from ramet.evaluate import evaluation
from ramet.evaluate.files import load_results
from ramet.evaluate.stored import stored_evaluation
from ramet.export.job import find_checkpoint
from ramet.models.loading import load_model
from ramet.plugins.component_checks import is_agent
from ramet.policy.checkpoint.state import saved_weights
from ramet.rollout.branching.budgets import step_budget
from ramet.rollout.keys import stable_seed
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.prefixes import prefix_at
from ramet.rollout.record import GroupRecord, read_records
from ramet.rollout.record_files import recorded_files
from ramet.types import Benchmark, Rollout, Task

CHECKPOINTS = "checkpoints"  # of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayGroup:
    """A group of a record. `task` is today's: the prompt may be another one than the record's."""

    record: GroupRecord
    task: Task
    name: str  # the task's part of the rollouts' keys
    plan: RolloutPlan
    benchmark: str = ""  # of an evaluation

    @property
    def rollouts(self) -> list[Rollout]:
        return [scored.rollout for scored in self.record.group.rollouts]

    @property
    def version(self) -> int | None:
        """The number of updates of the weights that sampled it; None: of several weights, or of none."""
        versions = {s.policy_version for rollout in self.rollouts for s in rollout.segments if s.is_sampled}
        return versions.pop() if len(versions) == 1 else None

    @property
    def n_updates(self) -> int:
        """The number of updates of the weights to run it again with, unless another model is named."""
        return 0 if self.benchmark else self.version or 0

    def missing_weights(self, run: Path, config: Config) -> str | None:
        """Why the weights that sampled it are not in the run; None: they are, or `model.path` has them."""
        if self.benchmark:
            return None
        if self.version is None:
            return "sampled by weights of several versions; name a model with model.path=FOLDER"
        kept = (run / CHECKPOINTS / f"step_{self.version:06d}").is_dir()
        if self.version and (config.policy.lora_rank or not kept):
            return "the weights that sampled it are not kept; name a model with model.path=FOLDER"
        return None

    def continued(self, rollout: Rollout, turn: int, n: int, purpose: str) -> RolloutRequest:
        """Return the request for `n` rollouts from where a turn of a rollout begins; 0: from the prompt of today.

        States are opened with the recorded seeds, for which the keys have the recorded salt and name. The step in the
        keys is of `purpose` and the rollout, so that other tokens are sampled than in the record.
        """
        plan = replace(self.plan, group_size=n, branch=False)
        begin = prefix_at(self.record, rollout, turn) if turn else None
        step = stable_seed(purpose, self.record.step, rollout.id)
        return RolloutRequest(tasks=[self.task], step=step, plan=plan, begin=begin, names=[self.name])


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedReplay:
    """The checked parts, as `ramet train` or `ramet eval` would build them today."""

    resolved: Resolved
    components: Components
    tools: ToolNames
    groups: list[ReplayGroup]
    benchmarks: dict[str, Benchmark]  # by name; empty: the components' rewards score


def weights_after(run: Path, config: Config, step: int) -> dict[str, Tensor]:
    """Return the weights of a run after a step, from its checkpoint; 0: those that it began with."""
    if step:
        return saved_weights(find_checkpoint(run / CHECKPOINTS, step).folder)
    return dict(load_model(config.model).state_dict())


def prepare(
    folder: Path, resolved: Resolved, *, step: int | None, limit: int | None, with_engine: bool = True
) -> PreparedReplay:
    """Do all checks, reported together in `ConfigErrors`, and read the record.

    `step`: only of this step; None: of all. `limit`: at most so many groups. `with_engine`: the engine
    of a training is checked.
    """
    if resolved.job == "eval":
        if step is not None:
            raise ConfigError(f"step {step}: {folder} is an evaluation, which has no steps")
        parts = evaluation.prepare(resolved)
        prepared = PreparedReplay(
            resolved=resolved,
            components=parts.components,
            tools=parts.tools,
            groups=list(islice(_evaluated(folder, parts, resolved.config.evaluate.k), limit)),
            benchmarks=dict(parts.benchmarks),
        )
    else:
        components = Components(resolved.config)
        if step_budget(resolved.config.train.budget, components.branch_policy) is not None:
            raise ConfigError(f"{folder} has a step budget (train.budget): its groups, of any size, cannot be repeated")
        prepared = PreparedReplay(
            resolved=resolved,
            components=components,
            tools=_checked(resolved, components, with_engine),
            groups=list(islice(_trained(folder, resolved, step), limit)),
            benchmarks={},
        )
    if is_agent(prepared.components.step):
        name = resolved.config.rollout_step.name
        raise ConfigError(f"rollout_step={name} is an agent, a program of its own, which cannot be repeated")
    if not prepared.groups:
        raise ConfigError(f"{folder} has no recorded rollouts{'' if step is None else f' of step {step}'}")
    return prepared


def _checked(resolved: Resolved, components: Components, with_engine: bool) -> ToolNames:
    problems = check(resolved, "train")
    tools = check_played(components, resolved.config, problems, with_engine=with_engine)
    raise_all(dict.fromkeys(problems))
    return tools


def _trained(folder: Path, resolved: Resolved, step: int | None) -> Iterator[ReplayGroup]:
    if resolved.job != "train":
        raise ConfigError(f"{folder} is a `ramet {resolved.job}` run, which has no rollouts")
    for file in recorded_files(folder):
        if file.kind != "step" or step not in (None, file.step):
            continue
        seen: Counter[str] = Counter()
        for record in read_records(file.path):
            task = record.group.task
            name = task.id if not seen[task.id] else f"{task.id}#{seen[task.id]}"
            seen[task.id] += 1
            plan = _plan(record, RolloutPlan(temperature=resolved.config.rollout.temperature, salt="train"))
            yield ReplayGroup(record=record, task=task, name=name, plan=plan)


def _evaluated(folder: Path, parts: evaluation.PreparedEvaluation, k: int) -> Iterator[ReplayGroup]:
    """A task has the prompt and the tools that the benchmark's rules give it today."""
    stored = stored_evaluation(load_results(folder)[0])
    tasks = {(name, task.id): task for name, of_benchmark in parts.tasks.items() for task in of_benchmark}
    for name, record in () if stored is None else stored.records():
        task = tasks.get((name, record.group.task.id))
        if task is None:
            raise ConfigError(f"{name} has no task {record.group.task.id!r} now, which {folder} has rollouts of")
        plan = _plan(record, parts.rules[name].plan(k))
        own = replace(task)  # an object for each group, by which a branch policy finds it
        yield ReplayGroup(record=record, task=own, name=task.id, plan=plan, benchmark=name)


def _plan(record: GroupRecord, plan: RolloutPlan) -> RolloutPlan:
    rollouts: Sequence[Rollout] = [scored.rollout for scored in record.group.rollouts]
    has_forks = any(rollout.parent is not None for rollout in rollouts)
    return replace(plan, group_size=len(rollouts), branch=has_forks, step_deadline=False, counted=False)
