"""Why a run does not learn: `ramet doctor RUN`, the line at the end of a run, the first lines of its report.

Checks read a `StoredRun` and yield findings, causes before what they cause. A finding that another one explains is left
out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ramet.config.secrets import hide
from ramet.doctor.run_checks import formats, policy, rewards, rollouts, sft, timing, tools, update
from ramet.doctor.stored_run import read_stored_run
from ramet.errors import InfraError, PluginError
from ramet.plugins import extensions
from ramet.plugins.extensions import ExtensionEntry
from ramet.plugins.plugin_code import raised_at
from ramet.types import Finding, RunCheck, Severity, StoredRun

logger = logging.getLogger(__name__)
MOST = 2  # findings: a run with more has a cause among the first
CHECKS: tuple[RunCheck, ...] = (
    update.not_finite,
    rollouts.masked,
    rollouts.crashed,
    update.engine_gap,
    formats.other_form,
    update.too_large,
    formats.no_format,
    tools.tool_fails,
    tools.tool_cut,
    formats.cut,
    rewards.misjudged,
    policy.sure,
    update.kl_coef,
    update.too_small,
    update.kl_grows,
    rewards.one_part,
    policy.entropy_grows,
    policy.length_grows,
    policy.reward_falls,
    tools.tool_unused,
    rewards.dead_part,
    rewards.outweighed,
    rewards.one_source,
    rewards.no_signal,
    rollouts.no_forks,
    update.clip_inert,
    timing.lost_time,
    sft.loss_flat,
    sft.overfit,
    rollouts.ended,
)
UNTRAINED = frozenset({"no-format", "cut", "tool-unused", "no-signal", "no-forks"})
FAILED_FORMAT = UNTRAINED | {"misjudged", "sure", "one-source", "dead-part"}  # which no update makes
BLOWN_UP = frozenset(
    {"cut", "no-format", "kl-grows", "entropy-grows", "length-grows", "collapsed", "clip-inert", "reward-falls"}
)
EXPLAINS: Mapping[str, frozenset[str]] = {  # finding -> those that follow from it
    "not-finite": BLOWN_UP | FAILED_FORMAT | {"ended"},
    "masked": frozenset({"tool-unused", "no-signal", "no-forks", "slow-tools", "stragglers", "tool-fails", "ended"}),
    "agent-crashed": UNTRAINED | {"tool-fails", "sure", "one-source", "dead-part"},
    "other-form": FAILED_FORMAT,
    "update-large": BLOWN_UP | UNTRAINED,
    "no-format": FAILED_FORMAT | {"tool-fails"},
    "tool-fails": frozenset({"no-signal", "no-forks", "cut", "length-grows", "one-source"}),
    "tool-cut": frozenset({"no-signal", "no-forks", "cut", "length-grows"}),
    "cut": frozenset({"no-signal", "no-forks", "tool-unused", "length-grows", "sure"}),
    "misjudged": frozenset({"no-signal", "one-source", "hacked"}),
    "engine-gap": BLOWN_UP | UNTRAINED | {"update-large"},
    "sure": frozenset({"no-signal", "no-forks"}),
    "kl-coef": frozenset({"update-large"}),
    "kl-grows": BLOWN_UP,
    "entropy-grows": frozenset({"length-grows", "reward-falls"}),
    "length-grows": frozenset({"reward-falls"}),
    "collapsed": frozenset({"reward-falls", "no-signal"}),
    "hacked": frozenset({"length-grows", "entropy-grows", "outweighed"}),
    "tool-unused": frozenset({"no-forks", "no-signal"}),
    "dead-part": frozenset({"no-signal", "outweighed"}),
    "one-source": frozenset({"no-signal"}),
}
RANK = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.NOTE: 2, Severity.OK: 3}


def diagnose(run: Path | str, *, most: int | None = MOST) -> list[Finding]:
    """Return what is wrong with a run, the worst first, `most` of them (None: all, also those that others explain).

    A cause comes before what it explains and counts as much, even if it is only a warning by itself. An empty list
    means that nothing was found. Raises `ConfigError` for a folder without anything to examine.
    """
    found = [_hidden(finding) for finding in _all_findings(read_stored_run(Path(run)))]
    if most is None:
        return sorted(found, key=lambda finding: RANK[finding.severity])
    left = [finding for finding in found if not _is_explained(finding, found)]
    worst = {id(cause): min(RANK[f.severity] for f in (cause, *_explained_by(cause, left))) for cause in left}
    return sorted(left, key=lambda finding: worst[id(finding)])[:most]


@contextmanager
def diagnosed(folder: Path) -> Iterator[None]:
    """Log the findings of the run in one line when the block ends, also if infrastructure or a plugin ended it."""
    try:
        yield
    except (InfraError, PluginError):
        _log_findings(folder)
        raise
    _log_findings(folder)


def _log_findings(folder: Path) -> None:
    """Log nothing where nothing was found. Never raises: a diagnosis fails no run."""
    try:
        findings = diagnose(folder)
    except Exception as error:
        logger.warning("doctor: %s could not be examined: %r", folder, error)
        return
    if findings:
        counted = f"{len(findings)} finding{'s' * (len(findings) > 1)}"
        whats = "; ".join(finding.what for finding in findings)
        logger.warning("doctor: %s: %s; see ramet doctor %s", counted, whats, folder)


def _all_findings(run: StoredRun) -> Iterator[Finding]:
    for check in CHECKS:
        yield from _asked(check, run)
    for entry in extensions.extensions(extensions.DIAGNOSES):
        yield from _asked(entry, run)


def _is_explained(finding: Finding, found: Iterable[Finding]) -> bool:
    """Whether another finding, at least as severe, explains this one."""
    return any(
        finding in _explained_by(other, found) and RANK[other.severity] <= RANK[finding.severity] for other in found
    )


def _explained_by(cause: Finding, found: Iterable[Finding]) -> list[Finding]:
    names = EXPLAINS.get(cause.name or "", frozenset()) - {cause.name}
    return [finding for finding in found if finding.name in names]


def _asked(asked: RunCheck | ExtensionEntry, run: StoredRun) -> list[Finding]:
    """The findings of a check of the core or of a package. What it raises is logged, and becomes a note."""
    try:
        check: RunCheck = asked.load() if isinstance(asked, ExtensionEntry) else asked
        return list(check(run))
    except (Exception, SystemExit) as error:
        package = asked.distribution if isinstance(asked, ExtensionEntry) else None
        what = str(asked) if package else f"the check {getattr(asked, '__name__', asked)}"
        text = f"the check itself failed: {type(error).__name__}: {error}{raised_at(error)}"
        logger.warning("doctor: %s: %s", what, hide(text))
        fix = f"report it to the authors of {package or 'ramet'}"
        return [Finding(what=what, severity=Severity.NOTE, text=text, fix=fix)]


def _hidden(finding: Finding) -> Finding:
    """Hide keys: a text quotes what tools and models wrote."""
    return Finding(
        what=finding.what,
        severity=finding.severity,
        text=hide(finding.text),
        fix=None if finding.fix is None else hide(finding.fix),
        rollouts=finding.rollouts,
        page=finding.page,
        name=finding.name,
    )
