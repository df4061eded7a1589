"""Rollouts that are masked, and by what; forks that are never made, and why."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ramet.config.secrets import hide
from ramet.doctor import thresholds as t
from ramet.doctor.reading import all_rollouts, finding, groups_of, mean, number, percent, quoted, severity, unmasked
from ramet.errors import ConfigError
from ramet.runs.manifest import MANIFEST, read_manifest
from ramet.runs.run_dir import RUN_LOG
from ramet.types import Finding, Severity, StoredRun

LOG_END = 80_000  # bytes of run.log in which the last error is looked for


def masked(run: StoredRun) -> Iterator[Finding]:
    """Rollouts have no reward since something failed around the model."""
    seen = all_rollouts(run)
    faults = [(one, one.rollout.fault) for one in seen if one.rollout.fault is not None]
    share = mean(run.values("rollout/masked_share")) or len(faults) / max(1, len(seen))
    level = severity(share, t.MASKED_LOOK, t.MASKED_WRONG)
    if level is None:
        return
    where, times = Counter(fault.where for _, fault in faults).most_common(1)[0] if faults else ("unknown", 0)
    message = next((fault.message for _, fault in faults if fault.where == where), "")
    yield finding(
        "masked",
        level,
        f"rollouts are masked by {where}",
        f"{percent(share)} of the rollouts have no reward; {times} of {len(faults)} masked ones that were read by "
        f"{where}: {quoted(message, 160)}",
        _fix(where),
        [one for one, fault in faults if fault.where == where],
    )


def crashed(run: StoredRun) -> Iterator[Finding]:
    """The agent ended with an error, which counts as the policy's doing."""
    seen = unmasked(run)
    crashes = [one for one in seen if one.rollout.infos and one.rollout.infos[-1].get("agent") == "failed"]
    level = severity(len(crashes) / max(1, len(seen)), t.CRASHED_LOOK, t.CRASHED_WRONG)
    if level is None or len(seen) < t.FEWEST_ROLLOUTS:
        return
    (said, times) = Counter(str(one.rollout.infos[-1].get("error", "status failed")) for one in crashes).most_common(1)[
        0
    ]
    yield finding(
        "agent-crashed",
        level,
        "the agent crashes",
        f"{percent(len(crashes) / len(seen))} of the rollouts ended with an error of the agent and have no answer; "
        f"{times} of {len(crashes)} times: {quoted(said, 160)}",
        "the agent's program, for what the policy really writes: ramet play shows it with the same settings",
        crashes,
    )


def _fix(where: str) -> str:
    kind, _, name = where.removeprefix("plugin:").partition(":")
    if where.startswith("plugin:"):
        return f"the code of {kind} {name}".rstrip() + ": run.log has the traceback"
    return {
        "tool": f"tools.{name}.timeout_s, retries, concurrency; the service that it calls (ramet tool call {name})",
        "reward": f"rewards.{name}.timeout_s, retries; the judge that it asks",
        "deadline": "rollout.deadline_s; rollout.max_concurrent (fewer at once)",
        "engine": "the engine's log; engine.params",
        "state": f"the state of {name}"
        if name != "agent"
        else "leave times, new ids and paths out of the agent's requests, or rollout_step.params.forks=none",
        "agent": "the address and key of the agent (ctx.base_url, ctx.key), the service that it uses; run.log",
    }.get(kind, "run.log has the message")


def ended(run: StoredRun) -> Iterator[Finding]:
    """The last process of the run ended with an error."""
    try:
        attempts = read_manifest(run.folder / MANIFEST).attempts
        if not attempts or attempts[-1].status != "failed":
            return
        errors = [line for line in _last_lines(run.folder / RUN_LOG) if " ERROR " in line]
    except (ConfigError, OSError):
        return
    steps = max((step for values in run.metrics.values() for step in values), default=0)
    yield finding(
        "ended",
        Severity.PROBLEM,
        "the run ended with an error",
        f"after step {steps}: {hide(errors[-1].partition(' ERROR ')[2].strip()) if errors else 'run.log names none'}",
        f"what the message says; all of it is in {run.folder / RUN_LOG}",
    )


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_END))
        return file.read().decode(errors="replace").splitlines()


def no_forks(run: StoredRun) -> Iterator[Finding]:
    """The branch policy can fork and does not."""
    policy, forks = run.option("branch_policy.name", "none"), mean(run.values("rollout/forks_per_group"))
    started = mean(run.values("rollout/prefix_starts_per_group")) or 0.0
    if policy == "none" or forks is None or forks > t.FORKS_FEW or started > t.FORKS_FEW:
        return
    if len(unmasked(run)) < t.FEWEST_ROLLOUTS:
        return
    yield finding(
        "no-forks",
        Severity.WARNING,
        f"the branch policy {policy} makes {'no' if forks == 0 else 'few'} forks",
        f"{forks:.2g} forks per group: {_why(run)}",
        "branch_policy.params (docs/branch_policies.md); branch_policy=none and algorithm=grpo if no forks are wanted",
        [],
    )


def _why(run: StoredRun) -> str:
    size, roots = number(run, "rollout.group_size", 8), number(run, "branch_policy.params.initial_rollouts")
    if roots >= size:
        return f"branch_policy.params.initial_rollouts={roots:g} uses all of rollout.group_size={size:g}"
    if (mean(run.values("rollout/tool_use")) or 0.0) <= t.TOOL_UNUSED:
        return "no tool is called, and forks are made after tool results"
    if len([one for one in unmasked(run) if one.rollout.tool_calls]) and not _turns_after_tools(run):
        return "no turn follows a tool result"
    rose = mean(run.values("rollout/entropy_rose_share"))
    change = mean(run.values("rollout/entropy_change_p90"))
    if rose is None or change is None:
        return "no entropies after tool results were recorded"
    params = run.option("branch_policy.params", {})
    settings = ", ".join(f"{name}={params[name]}" for name in ("alpha", "beta", "tau") if name in params)
    return (
        f"the entropy rises after {percent(rose)} of the tool results, by {change:.3g} nats at the 90th percentile, "
        f"which its rule ({settings or policy_rule(run)}) does not take"
    )


def policy_rule(run: StoredRun) -> str:
    return f"branch_policy={run.option('branch_policy.name')}"


def _turns_after_tools(run: StoredRun) -> bool:
    return any(
        segment.turn > 0 and segment.is_sampled
        for group in groups_of(run)
        for rollout in group.group.rollouts
        for segment in rollout.segments
    )
