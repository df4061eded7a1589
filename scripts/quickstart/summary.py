"""What the quickstart writes: summary.json, curves as PNG, the report, and a table on the screen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from measure import Measured
from rich.console import Console
from rich.table import Table

from ramet.config.schema import Config
from ramet.tracking.jsonl import curves_of, read_metrics
from ramet.tracking.plots import plot_curves

CURVES = {
    "reward/mean": "reward (sampled)",
    "rollout/tool_use": "rollouts that call the tool",
    "rollout/forks_per_group": "forks per group",
    "train/entropy": "entropy (nats)",
}
GREEDY_BEFORE, GREEDY_AFTER, SAMPLED_RISE, COPYING = 0.40, 0.80, 0.35, 0.90  # what the quickstart promises


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seed: int
    before: Measured
    after: Measured
    follows_the_tool: float
    seconds_by_phase: dict[str, float]
    config: Config

    def missed(self) -> list[str]:
        """Promises that this run did not keep, in words."""
        checks = {
            f"greedy accuracy before is over {GREEDY_BEFORE}": self.before.greedy > GREEDY_BEFORE,
            f"SFT taught copying badly: accuracy with the tool is under {COPYING}": self.before.tool_accuracy < COPYING,
            f"greedy accuracy after is under {GREEDY_AFTER}": self.after.greedy < GREEDY_AFTER,
            f"sampled accuracy rose by less than {SAMPLED_RISE}": self.after.sampled - self.before.sampled
            < SAMPLED_RISE,
            "the answers do not follow a lying tool": self.follows_the_tool < GREEDY_AFTER,
        }
        return [text for text, missed in checks.items() if missed]


def write(outcome: Outcome, run: Path) -> None:
    body = {
        "greedy_before": outcome.before.greedy,
        "greedy_after": outcome.after.greedy,
        "sampled_before": outcome.before.sampled,
        "sampled_after": outcome.after.sampled,
        "tool_use_before": outcome.before.tool_use,
        "tool_use_after": outcome.after.tool_use,
        "tool_use_sampled_before": outcome.before.tool_use_sampled,
        "tool_use_sampled_after": outcome.after.tool_use_sampled,
        "tool_accuracy_before": outcome.before.tool_accuracy,
        "tool_accuracy_after": outcome.after.tool_accuracy,
        "follows_a_lying_tool": outcome.follows_the_tool,
        "rl_steps": outcome.config.train.steps,
        "roots": outcome.config.branch_policy.params.initial_rollouts,
        "rollouts_per_task": outcome.config.rollout.group_size,
        "seconds": round(sum(outcome.seconds_by_phase.values()), 1),
        "seconds_by_phase": {phase: round(seconds, 1) for phase, seconds in outcome.seconds_by_phase.items()},
        "seed": outcome.seed,
    }
    (run / "summary.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def plot(run: Path) -> Path:
    """Curves of the RL run, those that it has."""
    found = curves_of(read_metrics(run / "metrics.jsonl"))
    curves = {label: found[name] for name, label in CURVES.items() if name in found}
    plot_curves(run / "curves.png", curves, title="Quickstart: learning to use the tool", x="step")
    return run / "curves.png"


def show(outcome: Outcome, run: Path, files: list[Path]) -> None:
    console = Console(highlight=False)
    table = Table(title=f"held-out problems, seed {outcome.seed}")
    for column in ("", "before RL", "after RL"):
        table.add_column(column, justify="left" if not column else "right")
    before, after = outcome.before, outcome.after
    for label, old, new in (
        ("greedy accuracy", before.greedy, after.greedy),
        ("sampled accuracy (temperature 1)", before.sampled, after.sampled),
        ("tool use, greedy", before.tool_use, after.tool_use),
        ("tool use, sampled", before.tool_use_sampled, after.tool_use_sampled),
        ("accuracy where the tool was used", before.tool_accuracy, after.tool_accuracy),
    ):
        table.add_row(label, f"{old:.3f}", f"{new:.3f}")
    console.print(table)
    console.print(
        f"With a tool that returns wrong numbers, {outcome.follows_the_tool:.0%} of the answers follow the tool."
    )
    spent = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in outcome.seconds_by_phase.items())
    console.print(f"Time: {spent}.")
    for file in files:
        console.print(f"  {file}", soft_wrap=True)
    console.print(
        "Try next:\n"
        f"  .venv/bin/ramet eval experiment=quickstart model.path={run}/model evaluate.k=4\n"
        "  .venv/bin/ramet train experiment=quickstart branch_policy=random run.name=control\n"
        "  .venv/bin/ramet report runs/control\n"
        "  make quickstart SEED=2",
        soft_wrap=True,
    )
