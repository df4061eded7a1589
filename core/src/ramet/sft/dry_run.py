"""`ramet sft --dry-run`: every check, the data encoded, and what the training would do. Nothing is written."""

from __future__ import annotations

from ramet.config.resolved import Resolved
from ramet.config.schema import Config, Strategy
from ramet.errors import raise_all
from ramet.models.loading import resolve_device
from ramet.planning.run_plan import RECORDS, DryRun, placement, plan_run
from ramet.sft.checkpoints import SftLayout
from ramet.sft.job import CURVE, sft_manifest
from ramet.sft.output import SUMMARY
from ramet.sft.prepare import PreparedSft, prepare
from ramet.sft.trainer import CHECKPOINTS, total_steps


def plan(resolved: Resolved) -> DryRun:
    """Raises `ConfigErrors` with every problem found."""
    config = resolved.config
    prepared = prepare(resolved)
    run_plan = plan_run(resolved, sft_manifest(resolved, prepared))
    raise_all([*run_plan.problems, *SftLayout.of(config).check(run_plan.path / CHECKPOINTS)])
    workers = config.cluster.policy_workers
    steps = total_steps(config.sft, len(prepared.examples), workers)
    ranks = f" x {workers} workers" if workers > 1 else ""
    return DryRun(
        job="sft",
        facts={
            "directory": str(run_plan),
            "rows": f"{prepared.rows} from {', '.join(config.sft.data)}" + _left_out(prepared),
            "steps": f"{steps} of {config.sft.batch_size} x {config.sft.accumulate}{ranks} sequences",
            "tokens": f"{prepared.trained_tokens:,} trained a pass; a sequence has at most {config.sft.max_tokens}",
            "placement": _placement(config),
        },
        files=[
            *(f"{run_plan.path}/{name}" for name in (*RECORDS, CURVE, SUMMARY)),
            *([f"{run_plan.path}/{CHECKPOINTS}/checkpoint-…/"] if config.sft.save_every < steps else []),
            f"{config.sft.out or run_plan.path / 'model'}/",
        ],
    )


def _placement(config: Config) -> str:
    device = str(resolve_device(config.model))
    if config.sft.strategy is Strategy.NONE:
        return placement(device, None, "local")
    workers = config.cluster.policy_workers
    return f"{config.sft.strategy} over {workers} process{'es' if workers > 1 else ''}, each on {device}"


def _left_out(prepared: PreparedSft) -> str:
    return f" ({prepared.too_long} too long)" if prepared.too_long else ""
