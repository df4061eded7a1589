"""`ramet eval --dry-run`: every check that needs no weights, and what would be measured. Nothing is written."""

from __future__ import annotations

from pathlib import Path

from ramet.config.resolved import Resolved
from ramet.errors import raise_all
from ramet.evaluate.evaluation import prepare
from ramet.models.loading import resolve_device
from ramet.planning.run_plan import RECORDS, DryRun, entries_in_words, not_writable, placement, plan_run
from ramet.runs.manifest import make_manifest, model_files, model_fingerprint


def plan(resolved: Resolved) -> DryRun:
    """Raises `ConfigErrors` with every problem found."""
    config = resolved.config
    tasks = prepare(resolved).tasks
    run_plan = plan_run(resolved, make_manifest(resolved, model=model_fingerprint(*model_files(config.model))))
    out = Path(config.evaluate.out) if config.evaluate.out else run_plan.path / "results.json"
    raise_all([*run_plan.problems, *not_writable(out.parent, "evaluate.out")])
    rollouts = config.evaluate.k * sum(map(len, tasks.values()))
    return DryRun(
        job="eval",
        facts={
            "directory": str(run_plan),
            "benchmarks": ", ".join(f"{name} ({len(found)} tasks)" for name, found in tasks.items()),
            "rollouts": f"{config.evaluate.k} of each task = {rollouts}",
            "tokens": f"at most {rollouts * config.rollout.max_response_tokens:,} in all responses",
            "tools": entries_in_words(config.tools),
            "placement": placement(str(resolve_device(config.model)), config.engine.name, config.cluster.name),
        },
        files=[*(f"{run_plan.path}/{name}" for name in RECORDS if name != "metrics.jsonl"), str(out)],
    )
