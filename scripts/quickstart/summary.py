"""What the quickstart writes: summary.json, curves as PNG, the report, and a table on the screen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kind import QuickstartKind
from measure import Measured, Misled
from rich.console import Console
from rich.table import Table

from ramet.config.schema import Config
from ramet.tracking.jsonl import curves_of, read_metrics
from ramet.tracking.plots import plot_curves

CURVES = {
    "reward/mean": "reward (sampled)",
    "rollout/tool_calls_mean": "tool calls per rollout",
    "rollout/forks_per_group": "forks per group",
    "train/entropy": "entropy (nats)",
}
# What the quickstart promises.
GREEDY_BEFORE, GREEDY_AFTER, SAMPLED_RISE, COPYING, MISLED = 0.40, 0.80, 0.35, 0.90, 0.10
LEARNED = 0.80  # mean reward of a step: until then it learns


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seed: int
    question: str  # a held-out one
    before: Measured
    after: Measured
    misled: Misled
    forks: float  # see `forks_while_learning`
    seconds_by_phase: dict[str, float]
    config: Config
    kind: QuickstartKind

    def missed(self) -> list[str]:
        """Promises that this run did not keep, in words."""
        rise, least = self.after.sampled - self.before.sampled, self.kind.least_forks
        checks = {
            f"greedy accuracy before is over {GREEDY_BEFORE}": self.before.greedy > GREEDY_BEFORE,
            f"SFT taught copying badly: accuracy with the tool is under {COPYING}": self.before.tool_accuracy < COPYING,
            f"greedy accuracy after is under {GREEDY_AFTER}": self.after.greedy < GREEDY_AFTER,
            f"sampled accuracy rose by less than {SAMPLED_RISE}": rise < SAMPLED_RISE,
            f"accuracy with {self.kind.misleading} is over {MISLED}": self.misled.accuracy > MISLED,
            f"the answers do not follow {self.kind.misleading}": self.misled.follows < GREEDY_AFTER,
            f"a step while it learned had less than {least:g} forks per group": self.forks < least,
        }
        return [text for text, missed in checks.items() if missed]


def forks_while_learning(run: Path) -> float:
    """Forks per group in the step with the fewest, among those before the mean reward first reached `LEARNED`."""
    curves = curves_of(read_metrics(run / "metrics.jsonl"))
    rewards, forks = curves["reward/mean"][1], curves["rollout/forks_per_group"][1]
    learned = next((step for step, reward in enumerate(rewards) if reward >= LEARNED), len(rewards))
    return min(forks[: max(1, learned)])


def write(outcome: Outcome, run: Path) -> None:
    misleading, use = (text.replace(" ", "_") for text in (outcome.kind.misleading, outcome.kind.use))
    body = {
        "greedy_before": outcome.before.greedy,
        "greedy_after": outcome.after.greedy,
        "sampled_before": outcome.before.sampled,
        "sampled_after": outcome.after.sampled,
        f"{use}_before": outcome.before.tool_use,
        f"{use}_after": outcome.after.tool_use,
        f"{use}_sampled_before": outcome.before.tool_use_sampled,
        f"{use}_sampled_after": outcome.after.tool_use_sampled,
        "tool_accuracy_before": outcome.before.tool_accuracy,
        "tool_accuracy_after": outcome.after.tool_accuracy,
        f"accuracy_with_{misleading}": outcome.misled.accuracy,
        f"follows_{misleading}": outcome.misled.follows,
        "forks_per_group_while_learning": outcome.forks,
        "rl_steps": outcome.config.train.steps,
        "roots": outcome.config.branch_policy.params.initial_rollouts,
        "rollouts_per_task": outcome.config.rollout.group_size,
        "seconds": round(sum(outcome.seconds_by_phase.values()), 1),
        "seconds_by_phase": {phase: round(seconds, 1) for phase, seconds in outcome.seconds_by_phase.items()},
        "seed": outcome.seed,
    }
    (run / "summary.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def plot(run: Path, kind: QuickstartKind) -> Path:
    """Curves of the RL run, those that it has."""
    found = curves_of(read_metrics(run / "metrics.jsonl"))
    curves = {label: found[name] for name, label in CURVES.items() if name in found}
    plot_curves(run / "curves.png", curves, title=f"Quickstart: learning {kind.skill}", x="step")
    return run / "curves.png"


def show(outcome: Outcome, files: list[Path], commands: list[str]) -> None:
    console = Console(highlight=False, markup=False)  # paths may hold brackets
    console.print(_table(outcome))
    misled, misleading = outcome.misled, outcome.kind.misleading
    console.print(f"With {misleading}, {misled.accuracy:.0%} of the answers are right; {misled.follows:.0%} follow it.")
    console.print(f"While it learned, each step had at least {outcome.forks:.1f} forks per group.")
    spent = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in outcome.seconds_by_phase.items())
    console.print(f"Time: {spent}.")
    for file in files:
        console.print(f"  {file}", soft_wrap=True)
    console.print("Try next:", *(f"\n  {command}" for command in commands), sep="", soft_wrap=True)


def _table(outcome: Outcome) -> Table:
    table = Table(title=f"held-out problems, seed {outcome.seed}")
    for column in ("", "before RL", "after RL"):
        table.add_column(column, justify="left" if not column else "right")
    before, after, use = outcome.before, outcome.after, outcome.kind.use
    for label, old, new in (
        ("greedy accuracy", before.greedy, after.greedy),
        ("sampled accuracy (temperature 1)", before.sampled, after.sampled),
        (f"{use}, greedy", before.tool_use, after.tool_use),
        (f"{use}, sampled", before.tool_use_sampled, after.tool_use_sampled),
        (f"accuracy with {use}", before.tool_accuracy, after.tool_accuracy),
    ):
        table.add_row(label, f"{old:.3f}", f"{new:.3f}")
    return table
