"""`ramet eval --dry-run`: every check that needs no weights, and what would be measured. Nothing is written."""

from __future__ import annotations

from pathlib import Path

from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.errors import raise_all
from ramet.evaluate.evaluation import prepare
from ramet.evaluate.files import rollouts_path, tasks_path
from ramet.planning.memory import plan_memory
from ramet.planning.memory_report import check_memory, table
from ramet.planning.placement import check_machine, check_placement, machine_of, plan_devices
from ramet.planning.run_plan import (
    DryRun,
    entries_in_words,
    model_in_words,
    not_checked,
    not_writable,
    plan_run,
    records,
)
from ramet.runs.manifest import make_manifest, model_sha256


def plan(resolved: Resolved, on: str | None = None) -> DryRun:
    """`on` names a machine to plan for instead of this one (`8x80GiB`).

    Raises `ConfigErrors` with every problem found.
    """
    config = resolved.config
    machine = machine_of(config, on, ask_free=True)
    prepared = prepare(resolved, elsewhere=on is not None)
    tasks = prepared.tasks
    run_plan = plan_run(resolved, make_manifest(resolved, model=model_sha256(resolved)))
    out = Path(config.run.out) if config.run.out else run_plan.path / "results.json"
    memory = plan_memory(config, machine, trains=False)
    problems = [*run_plan.problems, *not_writable(out.parent, "run.out"), *check_machine(config, machine)]
    raise_all([*problems, *check_placement(config, machine, trains=False), *check_memory(memory)])
    rollouts = config.evaluate.k * sum(map(len, tasks.values()))
    return DryRun(
        job="eval",
        facts={
            "directory": str(run_plan),
            "model": model_in_words(config, memory),
            "benchmarks": ", ".join(
                f"{name} ({len(benchmark_tasks)} tasks)" for name, benchmark_tasks in tasks.items()
            ),
            "rollouts": f"{config.evaluate.k} of each task = {rollouts:,}",
            "tokens": _tokens(config, rollouts),
            "tools": entries_in_words(config.tools),
            "placement": str(plan_devices(config, machine, trains=False)),
            "memory": "\n".join(table(memory)),
            "not checked": not_checked(prepared.missing),
        },
        files=[
            *(f"{run_plan.path}/{name}" for name in records(config)),
            *map(str, (out, tasks_path(out), rollouts_path(out))),
        ],
    )


def _tokens(config: Config, rollouts: int) -> str:
    response, prompt = config.rollout.max_response_tokens, config.data.max_prompt_tokens
    return (
        f"of a sequence: at most {prompt:,} in the prompt and {response:,} in the response\n"
        f"of all responses: at most {rollouts * response:,}"
    )
