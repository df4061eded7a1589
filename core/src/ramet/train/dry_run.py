"""`ramet train --dry-run`: every check that needs no weights, and what the run would do. Nothing is written."""

from __future__ import annotations

from ramet.components.build import Components
from ramet.config.resolved import Resolved
from ramet.config.schema import Config, OldLogprobs
from ramet.errors import ConfigError, raise_all
from ramet.planning.memory import Inputs, MemoryPlan, estimate
from ramet.planning.memory_report import check_memory, table
from ramet.planning.model_shape import read_shape
from ramet.planning.placement import Machine, check_placement, machine_of, plan_devices
from ramet.planning.run_plan import RECORDS, DryRun, RunPlan, entries_in_words, plan_run
from ramet.runs.manifest import make_manifest
from ramet.train.prepare import PreparedRun, prepare
from ramet.types import Need


def plan(resolved: Resolved, on: str | None = None) -> DryRun:
    """`on` names a machine to plan for instead of this one (`8x80GiB`).

    Raises `ConfigErrors` with every problem found.
    """
    config = resolved.config
    machine = machine_of(config, on)
    prepared = prepare(resolved)
    run_plan = plan_run(resolved, make_manifest(resolved, data=prepared.data, model=prepared.model))
    memory = _memory(config, prepared.components, machine)
    raise_all([*run_plan.problems, *check_placement(config, machine), *_fits(memory)])
    return DryRun(
        job="train",
        facts={
            "directory": str(run_plan),
            "tasks": _tasks(prepared) + _order(config),
            "validation": _validation(config, prepared),
            "steps": _steps(config, prepared),
            "old policy": _old_policy(config, prepared.components),
            "tokens": _tokens(config, prepared),
            "algorithm": _algorithm(config),
            "rewards": entries_in_words(config.rewards),
            "tools": entries_in_words(config.tools),
            "placement": str(plan_devices(config, machine)),
            "memory": memory if isinstance(memory, str) else "\n".join(table(memory)),
        },
        files=_files(config, prepared, run_plan),
    )


def will_fit(config: Config, components: Components) -> list[str]:
    """What is likely not to fit on this machine. Estimates: a run logs them as warnings, a dry run is refused."""
    if config.cluster.address is not None:
        return []  # the workers' machines are others
    machine = machine_of(config)
    return [*check_placement(config, machine), *_fits(_memory(config, components, machine))]


def _memory(config: Config, components: Components, machine: Machine) -> MemoryPlan | str:
    """Or why none can be made: a model that is built otherwise can still be trained."""
    try:
        shape = read_shape(config.model)
    except ConfigError as error:
        return f"not estimated: {error}"
    needs = components.advantage.needs | components.loss.needs
    return estimate(Inputs(config=config, shape=shape, machine=machine, needs=needs))


def _fits(memory: MemoryPlan | str) -> list[str]:
    return [] if isinstance(memory, str) else check_memory(memory)


def _tasks(prepared: PreparedRun) -> str:
    record = prepared.data["train"]
    notes = {"bad rows skipped": record.skipped, "too long": prepared.too_long, "repaired": record.repaired}
    notes["outside the bounds of difficulty"] = record.by_difficulty
    not_used = ", ".join(f"{count} {what}" for what, count in notes.items() if count)
    found = f"{len(prepared.tasks)} of {record.tasks} from {', '.join(record.files)}"
    return f"{found} ({not_used})" if not_used else found


def _order(config: Config) -> str:
    """How tasks are chosen, where it is not the default."""
    data, shares = config.data, sum(config.data.weights.values())
    notes = [f"{name} {weight / shares:.0%} of draws" for name, weight in data.weights.items()]
    notes += ["from easy to hard in every pass"] if data.curriculum else []
    if config.train.resample_rounds:
        notes.append(f"groups without signal replaced up to {config.train.resample_rounds} times")
    return f"; {', '.join(notes)}" if notes else ""


def _validation(config: Config, prepared: PreparedRun) -> str:
    if not prepared.valid.tasks:
        return ""
    train = config.train
    every = f"every {train.eval_every} steps" if train.eval_every else "never in between"
    each = "1 rollout" if train.eval_k == 1 else f"{train.eval_k} rollouts"
    first = "before the first step and " if train.eval_first else ""
    best = f"; the best by {train.keep_best} is saved and kept" if train.keep_best else ""
    return f"{len(prepared.valid.tasks)} tasks, {each} each, {first}{every}{best}"


def _steps(config: Config, prepared: PreparedRun) -> str:
    train, group = config.train, config.rollout.group_size
    updates = train.epochs * train.minibatches
    return (
        f"{prepared.total_steps} of {train.tasks_per_step} tasks x {group} rollouts = {train.tasks_per_step * group}, "
        f"{updates} optimiser steps each"
    )


def _old_policy(config: Config, components: Components) -> str:
    """Where pi_old comes from, and what it costs."""
    if config.train.old_logprobs is OldLogprobs.ENGINE:
        return "the engine's log-probabilities (train.old_logprobs=engine)"
    if Need.OLD_LOGPROBS in components.advantage.needs:
        return f"one pass a step, since advantage={config.advantage.name} reads its log-probabilities"
    if config.train.epochs * config.train.minibatches > 1:
        return "one pass a step, since several optimiser steps move away from it"
    return "the policy itself, without a pass: a step has one optimiser step"


def _tokens(config: Config, prepared: PreparedRun) -> str:
    rollouts = config.train.tasks_per_step * config.rollout.group_size
    response, prompt = config.rollout.max_response_tokens, config.data.max_prompt_tokens
    step, ranks = rollouts * response, 1 if config.cluster.name == "local" else config.cluster.policy_workers
    each = -(-rollouts * (prompt + response) // ranks)
    return (
        f"at most {step:,} in the responses of a step, {prepared.total_steps * step:,} in all; "
        f"a sequence has at most {prompt} + {response}; a policy rank is fed at most {each:,} a step and pass"
    )


def _algorithm(config: Config) -> str:
    return (
        f"advantage {config.advantage.name}, loss {config.policy_loss.name}, "
        f"branch policy {config.branch_policy.name}, rollout step {config.rollout_step.name}"
    )


def _files(config: Config, prepared: PreparedRun, run_plan: RunPlan) -> list[str]:
    last, train = prepared.total_steps, config.train
    kept = f"every {train.save_every} steps and the last, {train.keep_checkpoints} kept"
    return [
        *(f"{run_plan.path}/{name}" for name in RECORDS),
        f"{run_plan.path}/rollouts/step_000001.jsonl.gz … step_{last:06d}.jsonl.gz",
        f"{run_plan.path}/checkpoints/step_…/ ({kept})",
        f"{run_plan.path}/model/",
    ]
