"""`ramet sft --dry-run`: every check, the data encoded, and what the training would do. Nothing is written."""

from __future__ import annotations

from ramet.config.resolved import Resolved
from ramet.config.schema import Config, Malformed, Strategy
from ramet.errors import raise_all
from ramet.models.check import has_tokenizer
from ramet.models.loading import resolve_device
from ramet.planning.disk import plan_disk
from ramet.planning.memory_report import check_memory, table
from ramet.planning.memory_sft import plan_sft_memory
from ramet.planning.placement import Machine, check_machine, machine_of
from ramet.planning.run_plan import DryRun, RunPlan, model_in_words, not_checked, plan_run, records
from ramet.runs.own_files import SFT_SUMMARY
from ramet.sft.batches import fed_by_step
from ramet.sft.checkpoints import SftLayout
from ramet.sft.job import CURVE, sft_manifest
from ramet.sft.output import ADAPTER
from ramet.sft.prepare import CheckedSft, PreparedSft, check_sft, encode_checked
from ramet.sft.trainer import CHECKPOINTS, KEPT, total_steps


def plan(resolved: Resolved, on: str | None = None) -> DryRun:
    """`on` names a machine to plan for instead of this one (`8x80GiB`).

    Raises `ConfigErrors` with every problem found.
    """
    config = resolved.config
    machine = machine_of(config, on, ask_free=True)
    checked = check_sft(resolved, machine if on is not None else None)
    encoded = encode_checked(config, checked) if has_tokenizer(config.model) else None
    steps, fed = None, None
    if encoded is not None:
        steps = total_steps(config.sft, len(encoded.examples))
        fed = fed_by_step(encoded.examples, config, steps)
    memory = plan_sft_memory(config, machine, fed)
    rows = len(checked.conversations) if encoded is None else encoded.counts.trained
    valid = None if encoded is None else encoded.valid_record(resolved)
    run_plan = plan_run(resolved, sft_manifest(resolved, fingerprint=checked.fingerprint, rows=rows, valid=valid))
    problems = [*run_plan.problems, *SftLayout.of(config).check(run_plan.path / CHECKPOINTS)]
    raise_all([*problems, *check_machine(config, machine), *check_memory(memory)])
    return DryRun(
        job="sft",
        facts={
            "directory": str(run_plan),
            "model": model_in_words(config, memory),
            "rows": f"{rows} from {', '.join(config.sft.data)}{_not_as_written(config, encoded)}",
            **_held_out(config, checked, encoded),
            "steps": _steps(config, steps),
            "tokens": _tokens(config, encoded),
            "placement": _placement(config, machine),
            "memory": "\n".join(table(memory)),
            "disk": plan_disk(memory, run_plan.path, kept=_kept(config, steps)),
            "not checked": not_checked(checked.missing),
        },
        files=_files(config, run_plan, steps),
    )


def _held_out(config: Config, checked: CheckedSft, encoded: PreparedSft | None) -> dict[str, str]:
    """How many rows, and when their loss is measured."""
    if not config.sft.holds_out:
        return {}
    options = config.sft.trainer_options()
    rows = len(checked.valid) if encoded is None else encoded.counts.held_out
    when = f"every {options['eval_steps']} steps" if options["eval_steps"] else "after each pass"
    patience = options["early_stopping_patience"]
    ends = "" if patience is None else f"; {patience} without a lower one end the training"
    return {"held out": f"{rows} rows, whose loss is measured before the first step and {when}{ends}"}


def _steps(config: Config, steps: int | None) -> str:
    """Rows are cut into examples, so their number is known when they are encoded."""
    count = "not known without a tokenizer; each" if steps is None else f"{steps}, each"
    return f"{count} of {config.sft.sequences_per_step} sequences"


def _tokens(config: Config, encoded: PreparedSft | None) -> str:
    trained = "" if encoded is None else f"{encoded.trained_tokens:,} trained a pass; "
    sft = config.sft
    return f"{trained}a sequence has at most {sft.max_tokens:,}, a forward pass {sft.max_microbatch_tokens:,}"


def _saves(config: Config, steps: int | None) -> bool:
    sft = config.sft
    return steps is None or sft.holds_out or sft.trainer_options()["save_steps"] < steps


def _kept(config: Config, steps: int | None) -> int:
    """Checkpoints that are there at the end, at most: the newest ones, and with held-out rows the best."""
    if not _saves(config, steps):
        return 0
    options, kept = config.sft.trainer_options(), KEPT + config.sft.holds_out
    every = options["save_steps"]
    if config.sft.holds_out:
        every = min(every, options["eval_steps"] or 1)
    return kept if steps is None else min(kept, -(-steps // every))


def _files(config: Config, run_plan: RunPlan, steps: int | None) -> list[str]:
    sft = config.sft
    return [
        *(f"{run_plan.path}/{name}" for name in (*records(config), CURVE, SFT_SUMMARY)),
        *([f"{run_plan.path}/{CHECKPOINTS}/checkpoint-…/"] if _saves(config, steps) else []),
        f"{config.run.out or run_plan.path / 'model'}/",
        *([f"{run_plan.path}/{ADAPTER}/"] if sft.lora_rank else []),
    ]


def _placement(config: Config, machine: Machine) -> str:
    device = str(resolve_device(config.model)) if machine.written is None else "cuda"
    if config.sft.strategy is Strategy.NONE:
        return f"in this process, on {device}"
    workers = config.cluster.policy_workers
    nodes = machine.nodes or 1
    how = f"; on {nodes} nodes a launcher such as torchrun starts them on each (docs/sft.md)" if nodes > 1 else ""
    return f"{config.sft.strategy} over {workers} process{'es' if workers > 1 else ''}, each on {device}{how}"


def _not_as_written(config: Config, encoded: PreparedSft | None) -> str:
    """Rows that are left out, or trained on although they are malformed."""
    if encoded is None:
        return "; their lengths are not known"
    counts, kept = encoded.counts, config.sft.malformed is Malformed.KEEP
    left_out = {"too long": counts.too_long, "malformed": 0 if kept else counts.malformed}
    parts = [f"{count} {what}" for what, count in left_out.items() if count]
    shown = f"; left out: {', '.join(parts)}" if parts else ""
    shown += f"; {counts.cut} of them cut" if counts.cut else ""
    return shown + (f"; {counts.malformed} of them malformed" if kept and counts.malformed else "")
