"""`ramet train --dry-run`: every check that needs no weights, and what the run would do. Nothing is written."""

from __future__ import annotations

from ramet.components.build import Components
from ramet.components.checks import ratio_is_one
from ramet.config.resolved import Resolved
from ramet.config.schema import Config, KlEstimator, OldLogprobs, Order, TrainConfig
from ramet.errors import raise_all
from ramet.models.check import has_tokenizer
from ramet.planning.disk import plan_disk
from ramet.planning.drawn import TOOL_S, Expected
from ramet.planning.memory import MemoryPlan, plan_memory
from ramet.planning.memory_report import check_memory, table
from ramet.planning.placement import (
    Machine,
    check_machine,
    check_placement,
    machine_of,
    plan_devices,
    threads_in_words,
)
from ramet.planning.run_plan import DryRun, RunPlan, entries_in_words, model_in_words, not_checked, plan_run, records
from ramet.planning.step_time import step_time
from ramet.planning.time_report import time_table
from ramet.policy.check import shares_in_words
from ramet.rollout.branching.budgets import step_budget
from ramet.runs.manifest import make_manifest
from ramet.train.data_sources import source_table
from ramet.train.prepare import PreparedRun, prepare
from ramet.types import BranchPolicy, Need

UNUSED = 1 / 4  # share of a response below which all results of tools together are small


def plan(
    resolved: Resolved, on: str | None = None, *, response_tokens: int | None = None, tool_s: float = TOOL_S
) -> DryRun:
    """`on` names a machine to plan for instead of this one (`8xH100`, `8x80GiB`). The estimate of time counts on so
    many tokens of a response in the mean (None: a share of the limit) and so many seconds of a tool call.

    Raises `ConfigErrors` with every problem found.
    """
    config = resolved.config
    machine = machine_of(config, on, ask_free=True)
    prepared = prepare(resolved, elsewhere=on is not None)
    run_plan = plan_run(resolved, make_manifest(resolved, data=prepared.data, model=prepared.model))
    memory = _memory(config, prepared.components, machine)
    raise_all(
        [*run_plan.problems, *check_machine(config, machine), *check_placement(config, machine), *check_memory(memory)]
    )
    expected = Expected(response_tokens=response_tokens, tool_s=tool_s)
    return DryRun(
        job="train",
        facts={
            "directory": str(run_plan),
            "model": model_in_words(config, memory),
            "tasks": _tasks(config, prepared) + _order(config, prepared.components.branch_policy),
            "validation": _validation(config, prepared),
            "steps": _steps(config, prepared),
            "tokens": _tokens(config, prepared),
            "algorithm": _algorithm(config),
            "engine": engine_in_words(config, cuda=machine.cuda),
            "shared prefixes": shares_in_words(config, cuda=machine.cuda),
            "old logprobs": _old_logprobs(config, prepared.components),
            "staleness": staleness_in_words(config),
            "rewards": entries_in_words(config.rewards),
            "sources": "\n".join(source_table(config.rewards, prepared.tasks, prepared.valid.tasks)),
            "tools": entries_in_words(config.tools) + _results(config),
            "tags": _foreign_tags(prepared),
            "placement": str(plan_devices(config, machine)),
            "threads": threads_in_words(config, machine),
            "memory": "\n".join(table(memory)),
            "time": "\n".join(time_table(step_time(memory, expected), expected)),
            "disk": plan_disk(memory, run_plan.path, kept=_kept(config.train, prepared.total_steps)),
            "not checked": not_checked(prepared.missing),
        },
        files=_files(config, prepared, run_plan),
    )


def will_fit(config: Config, components: Components) -> list[str]:
    """Parts that are likely not to fit on this machine.

    Estimates: a run logs them as warnings, a dry run is refused.
    """
    if config.cluster.address is not None:
        return []  # the workers' machines are others
    machine = machine_of(config)
    return [*check_placement(config, machine), *check_memory(_memory(config, components, machine))]


def _memory(config: Config, components: Components, machine: Machine) -> MemoryPlan | str:
    return plan_memory(config, machine, needs=components.advantage.needs | components.loss.needs)


def _tasks(config: Config, prepared: PreparedRun) -> str:
    record = prepared.data["train"]
    out = {"bad rows": record.skipped, "prompts that are too long": prepared.too_long}
    out["tasks outside the bounds of difficulty"] = record.by_difficulty
    left_out = ", ".join(f"{count} {what}" for what, count in out.items() if count)
    repaired = f"{record.repaired} with a corrupted \\boxed, which was repaired" if record.repaired else ""
    lengths = "" if has_tokenizer(config.model) else "lengths of prompts are not known"
    notes = [f"left out: {left_out}" if left_out else "", repaired, lengths]
    used = f"{len(prepared.tasks)} of {record.tasks} from {', '.join(record.files)}"
    return "; ".join([used, *filter(None, notes)])


def _results(config: Config) -> str:
    """Say how long results may be, where all that a rollout may get leave most of a response unused."""
    rollout = config.rollout
    calls = min(rollout.max_tool_calls, rollout.max_turns - 1)
    most = max((tool.max_result_tokens for tool in config.tools.values()), default=0)
    if not 0 < calls * most < UNUSED * rollout.max_response_tokens:
        return ""
    limits = ", ".join(
        f"tools.{name}.max_result_tokens={tool.max_result_tokens}" for name, tool in config.tools.items()
    )
    return (
        f"\nresults are cut ({limits}): the {calls} calls of a rollout (rollout.max_tool_calls, rollout.max_turns) "
        f"bring at most {calls * most:,} of the {rollout.max_response_tokens:,} tokens of a response; raise what a "
        "longer task needs"
    )


def _foreign_tags(prepared: PreparedRun) -> str:
    tags = [f"<{tag}> ({len(ids)} prompt{'s' if len(ids) != 1 else ''})" for tag, ids in prepared.foreign_tags.items()]
    return f"no tool serves {', '.join(tags)}: a call is answered with an error" if tags else ""


def _order(config: Config, policy: BranchPolicy) -> str:
    """How tasks are chosen, where it is not the default."""
    data, shares = config.data, sum(config.data.weights.values())
    notes = [f"{name} {weight / shares:.0%} of draws" for name, weight in data.weights.items()]
    notes += ["from easy to hard in every pass"] if data.order is Order.CURRICULUM else []
    if config.train.resample_rounds:
        notes.append(f"groups without signal replaced up to {config.train.resample_rounds} times")
    if step_budget(config.train.budget, policy) is not None:
        train = config.train
        notes.append(
            f"a step draws {train.tasks_drawn} and spreads its rollouts by train.budget={train.budget}, in waves"
        )
    return f"; {', '.join(notes)}" if notes else ""


def _validation(config: Config, prepared: PreparedRun) -> str:
    if not prepared.valid.tasks:
        return ""
    train = config.train
    if not train.eval_every and not train.eval_first:
        return f"{len(prepared.valid.tasks)} tasks, never measured: train.eval_every=0"
    every = f"every {train.eval_every} steps" if train.eval_every else "never after it (train.eval_every=0)"
    each = "1 rollout" if train.eval_k == 1 else f"{train.eval_k} rollouts"
    first = "before the first step and " if train.eval_first else ""
    best = f"; the best by {train.keep_best} is saved and kept" if train.keep_best else ""
    return f"{len(prepared.valid.tasks)} tasks, {each} each, {first}{every}{best}"


def _steps(config: Config, prepared: PreparedRun) -> str:
    train, group = config.train, config.rollout.group_size
    updates = train.epochs * train.minibatches
    each = f"{train.tasks_per_step} tasks x {group} rollouts = {train.tasks_per_step * group:,} rollouts"
    return f"{prepared.total_steps}, each with {each} and {updates} optimiser step{'s' * (updates > 1)}"


def engine_in_words(config: Config, *, cuda: bool) -> str:
    """Say which, and on a CPU how `torch` and `vllm` compare there (bench/real_model)."""
    if cuda or config.engine.name not in ("torch", "vllm"):
        return config.engine.name
    return (
        f"{config.engine.name}; measured on two CPU cores, with 135 million parameters and 24 rollouts at once: torch "
        "115 tokens/s, vllm 121, with 2 GB more memory"
    )


def _old_logprobs(config: Config, components: Components) -> str:
    """Say where pi_old's log-probabilities, the base of importance ratios, come from and what they cost."""
    if config.train.old_logprobs is OldLogprobs.ENGINE:
        return "the engine's (train.old_logprobs=engine)"
    updates = config.train.epochs * config.train.minibatches
    if Need.OLD_LOGPROBS in components.advantage.needs:
        why = f"advantage={config.advantage.name} reads them"
    elif config.train.kl_coef > 0 and config.train.kl_estimator is KlEstimator.K1_REWARD:
        why = "train.kl_estimator=k1-reward compares them with the reference's"
    elif updates > 1:
        why = f"its {updates} optimiser steps change the policy"
    else:
        free = "taken from the update's own forward pass, at no cost: a step has one optimiser step"
        at_one = "; the ratio is 1: clipping does nothing (train.minibatches)"
        return free + at_one * ratio_is_one(config, components.loss)
    return f"computed before the update, by one more forward pass a step, since {why}"


def staleness_in_words(config: Config) -> str:
    """How far groups run ahead, the correction for it, and whether there is room; empty if they wait for the update."""
    train = config.train
    if not train.staleness:
        return ""
    ahead = "step" if train.staleness == 1 else f"{train.staleness} steps"
    lag = "1 update" if train.staleness == 1 else f"{train.staleness} updates"
    weights = f"are cut at train.tis_cap={train.tis_cap}" if train.tis_cap is not None else "are the loss's ratios"
    return (
        f"groups of the next {ahead} run during the update, with weights at most {lag} old; their importance "
        f"weights {weights}{_room_ahead(config)}"
    )


def _room_ahead(config: Config) -> str:
    workers = 1 if config.cluster.name == "local" else config.cluster.rollout_workers
    at_once, step = workers * config.rollout.max_concurrent, config.train.tasks_per_step * config.rollout.group_size
    if at_once > step:
        return ""
    each = "" if workers == 1 else f" in each of {workers} workers"
    return (
        f"\n{at_once:,} rollouts run at once (rollout.max_concurrent={config.rollout.max_concurrent}{each}) and a step "
        f"has {step:,}: groups begin ahead only as that step's end; more places would begin them earlier"
    )


def _tokens(config: Config, prepared: PreparedRun) -> str:
    rollouts = config.train.tasks_per_step * config.rollout.group_size
    response, prompt = config.rollout.max_response_tokens, config.data.max_prompt_tokens
    step, ranks = rollouts * response, 1 if config.cluster.name == "local" else config.cluster.policy_workers
    each = -(-rollouts * (prompt + response) // ranks)
    return "\n".join(
        (
            f"of a sequence: at most {prompt:,} in the prompt and {response:,} in the response",
            f"of all responses: at most {step:,} a step, {prepared.total_steps * step:,} in the run",
            f"of a policy rank: at most {each:,} in one pass over a step",
        )
    )


def _algorithm(config: Config) -> str:
    return (
        f"advantage {config.advantage.name}, loss {config.policy_loss.name}, "
        f"branch policy {config.branch_policy.name}, rollout step {config.rollout_step.name}"
    )


def _kept(train: TrainConfig, steps: int) -> int:
    """Checkpoints that are there at the end: the newest ones, and the best if older ones are deleted."""
    saved = -(-steps // train.save_every)
    return min(saved, train.keep_checkpoints + (train.keep_best is not None))


def _files(config: Config, prepared: PreparedRun, run_plan: RunPlan) -> list[str]:
    last, train = prepared.total_steps, config.train
    end = ".jsonl.gz" if config.cluster.name == "local" else "/"  # workers write parts
    kept = f"every {train.save_every} steps and the last, {train.keep_checkpoints} kept"
    return [
        *(f"{run_plan.path}/{name}" for name in records(config)),
        f"{run_plan.path}/rollouts/step_000001{end} … step_{last:06d}{end}",
        f"{run_plan.path}/checkpoints/step_…/ ({kept})",
        f"{run_plan.path}/model/",
    ]
