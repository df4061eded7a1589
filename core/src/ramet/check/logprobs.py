"""`ramet check-logprobs`: run a few tasks as training would, recompute the log-probabilities as training would.

It takes what `ramet train` takes, makes the same checks and starts the same workers, so that the command line of a run
is its own test: rollouts come from the run's engines, and all ranks of its policy compute, as sharded, offloaded and
precise as they train. Nothing is written. All rollouts begin at the prompt, whatever `branch_policy` says.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ramet.check.agreement import DEFAULTS, Agreement, Spread, Threshold, Token, Weights, compare
from ramet.cluster.interfaces import Backend
from ramet.cluster.launch import open_backend
from ramet.config.resolved import Resolved
from ramet.config.schema import ClusterConfig, Config, Order
from ramet.data.sampler import Sampler
from ramet.errors import ConfigErrors, InfraError, raise_all
from ramet.event_loop import run_async
from ramet.io.json_values import visible_lines
from ramet.models.encoder import Encoder
from ramet.models.loading import build_encoder
from ramet.models.torch_setup import set_up_torch
from ramet.policy.batching.rows import Row, rows_of
from ramet.policy.batching.threads import Threads
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec
from ramet.rollout.plan import RolloutPlan, RolloutRequest, check_groups
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.train.groups import check_infrastructure, masked_limit
from ramet.train.prepare import PreparedRun, prepare
from ramet.train.specs import policy_spec
from ramet.types import Group, Task

logger = logging.getLogger(__name__)
DISAGREE = 1  # exit code
AROUND = 16  # tokens of text on each side of the worst one


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The rollouts to run, and how far apart the two may be."""

    tasks: int = 8
    rollouts: int = 2  # per task
    threshold: float | None = None  # nats; None: by model.dtype

    def problems(self, config: Config) -> list[str]:
        most = config.rollout.max_concurrent
        wrong = []
        if self.tasks < 1:
            wrong.append(f"--tasks {self.tasks}: must be at least 1")
        if not 2 <= self.rollouts <= most:
            wrong.append(f"--rollouts {self.rollouts}: must be at least 2 and at most rollout.max_concurrent={most}")
        if self.threshold is not None and not self.threshold > 0:
            wrong.append(f"--threshold {self.threshold:g}: must be over 0")
        return wrong


def run(resolved: Resolved, options: Options | None = None) -> int:
    """The job; returns the exit code. Raises `ConfigErrors` before anything starts if something is wrong."""
    config, options = resolved.config, options or Options()
    prepared = _prepare(resolved, options)
    tasks = draw_tasks(prepared, config, options)
    threshold = DEFAULTS[config.model.dtype]
    if options.threshold is not None:
        threshold = replace(threshold, value=options.threshold)
    set_up_torch(config.run)
    logger.info(
        "%s: %d tasks x %d rollouts, engine %s against %s; nothing is written",
        config.model.path, len(tasks), options.rollouts, config.engine.name, _trainer_in_words(config.cluster),
    )  # fmt: skip
    encoder = build_encoder(config)
    rows, agreement = run_async(_compare(config, prepared, tasks, options))
    _show(agreement, rows, config, encoder, threshold)
    return DISAGREE if agreement.exceeds(threshold) else 0


def _prepare(resolved: Resolved, options: Options) -> PreparedRun:
    """Do all checks of a training run and of the options, reported together."""
    problems = options.problems(resolved.config)
    try:
        prepared = prepare(resolved)
    except ConfigErrors as error:
        raise ConfigErrors([*problems, *error.problems]) from error
    raise_all(problems)
    return prepared


def draw_tasks(prepared: PreparedRun, config: Config, options: Options) -> list[Task]:
    """The tasks to run, drawn by `run.seed`."""
    n = len(prepared.tasks)
    drawn = Sampler(n, min(options.tasks, n), config.run.seed, config.data.order is not Order.FILE).draw(
        min(options.tasks, n)
    )
    return [prepared.tasks[i] for i in drawn]


async def _compare(
    config: Config, prepared: PreparedRun, tasks: Sequence[Task], options: Options
) -> tuple[list[Row], Agreement]:
    """Compare with the workers that a training run would start, before its first update."""
    with tempfile.TemporaryDirectory(prefix="ramet-check-") as folder:
        async with open_backend(
            config,
            _spec(config, prepared),
            components=prepared.components,
            folder=Path(folder),
            tools=prepared.tools,
        ) as backend:
            return await measure(backend, tasks, config, rollouts=options.rollouts)


async def measure(
    backend: Backend, tasks: Sequence[Task], config: Config, *, rollouts: int
) -> tuple[list[Row], Agreement]:
    """Run each task `rollouts` times and compute the same tokens with the policy, with the weights that both have."""
    plan = RolloutPlan(group_size=rollouts, branch=False, salt="check")
    groups = await backend.rollouts.run(RolloutRequest(tasks=tasks, step=0, plan=plan))
    check_groups(groups, tasks, rollouts)
    rows = _rows(groups, config)
    logprobs, entropies = await backend.policy.call(PolicyRank.logprobs_and_entropies, rows)
    return rows, compare(rows, logprobs, entropies, tis_cap=config.train.tis_cap)


def _spec(config: Config, prepared: PreparedRun) -> PolicySpec:
    """The run's policy, without the reference: that is another model, which says nothing about these numbers."""
    spec = policy_spec(config, prepared.components, prepared.total_steps)
    return replace(spec, train=replace(spec.train, kl_coef=0.0), needs=frozenset())


def _trainer_in_words(cluster: ClusterConfig) -> str:
    if cluster.name == "local":
        return "the trainer in this process"
    return f"the trainer's {cluster.policy_workers} rank{'s' * (cluster.policy_workers > 1)} (cluster={cluster.name})"


def _rows(groups: Sequence[Group], config: Config) -> list[Row]:
    """Return the rows that training would make of them; rewards do not matter here."""
    scored = [
        ScoredGroup(
            task=group.task,
            rollouts=tuple(
                ScoredRollout(rollout=rollout, reward=0.0 if rollout.valid else None) for rollout in group.rollouts
            ),
        )
        for group in groups
    ]
    check_infrastructure(scored, masked_limit(config.rollout))
    rows = rows_of(scored)
    if not any(row.n_trained for row in rows):
        raise InfraError("no sampled tokens to compare: every group has fewer than two rollouts that are not masked")
    return list(Threads.of(rows).rows)


def _show(agreement: Agreement, rows: Sequence[Row], config: Config, encoder: Encoder, threshold: Threshold) -> None:
    console = Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=True)
    console.print(agreement_table(agreement, engine=config.engine.name))
    console.print(describe_weights(agreement.weights, config.train.tis_cap))
    console.print(describe_token(agreement.worst, rows, encoder))
    console.print(verdict(agreement, threshold))


def agreement_table(agreement: Agreement, *, engine: str) -> Table:
    title = f"engine {engine} and trainer: {agreement.tokens} sampled tokens of {agreement.rollouts} rollouts"
    table = Table(title=title)
    for column in ("absolute difference, nats", "mean", "99th percentile", "largest"):
        table.add_column(column)
    table.add_row("log-probability", *_numbers(agreement.logprobs))
    table.add_row("entropy", *_numbers(agreement.entropies))
    return table


def describe_weights(weights: Weights, tis_cap: float | None) -> str:
    """Describe the differences as weights of truncated importance sampling."""
    cap = "off" if tis_cap is None else f"{tis_cap:g}, truncates {weights.truncated:.2%}"
    return (
        f"importance weights {weights.least:.6f} to {weights.largest:.6f}, mean {weights.mean:.6f}, "
        f"effective sample {weights.effective:.2%} (both truncated); train.tis_cap {cap}"
    )


def _numbers(spread: Spread | None) -> tuple[str, ...]:
    return (
        ("-",) * 3 if spread is None else tuple(f"{value:.3g}" for value in (spread.mean, spread.p99, spread.largest))
    )


def describe_token(token: Token, rows: Sequence[Row], encoder: Encoder) -> str:
    """The position of the token, what engine and trainer have for it, and the text around it with the token in » «."""
    row, at = rows[token.row], token.position
    ids = [*row.prompt_ids.tolist(), *row.response_ids.tolist()]
    here = len(row.prompt_ids) + at
    before, token_text, after = (
        " ".join(visible_lines(encoder.decode(part)))
        for part in (ids[max(0, here - AROUND) : here], ids[here : here + 1], ids[here + 1 : here + 1 + AROUND])
    )
    return (
        f"worst token: task {row.task_id}, rollout {row.rollout_id}, turn {row.turn_ids[at]}, position {at} of the "
        f"response: engine {token.engine:.6f}, trainer {token.trainer:.6f}\n  {before}»{token_text}«{after}"
    )


def verdict(agreement: Agreement, threshold: Threshold) -> str:
    what = f"{threshold.statistic} difference of log-probabilities"
    if agreement.entropies is not None:
        what += " and of entropies"
    if agreement.exceeds(threshold):
        page = "docs/troubleshooting.md#engine-and-trainer-disagree-mismatch"
        return f"THEY DISAGREE: the {what} must be at most {threshold.value:g} nats; see {page}"
    return f"they agree: the {what} is at most {threshold.value:g} nats"
