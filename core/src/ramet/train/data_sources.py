"""Rewards that judge the tasks of each data source: checked before a run, and shown by `ramet train --dry-run`.

A reward for a source without tasks would have no effect, unnoticed: the policy would learn only from the others.
"""

from __future__ import annotations

import difflib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ramet.config.schema import Config, RewardConfig
from ramet.data.tasks import TaskSet
from ramet.io.json_values import visible_lines
from ramet.types import Task

logger = logging.getLogger(__name__)
SHOWN = 10  # data sources listed in a message


def check_sources(config: Config, train: TaskSet, valid: TaskSet | None) -> list[str]:
    """Check that every task has a reward or a benchmark that judges it, and every source that a reward names a task.

    Where `data.limits` left tasks unread, a source may be among those: that is a warning.
    """
    validated = valid.tasks if valid else []
    benchmarks = valid.benchmarks if valid else {}
    to_judge = [*train.tasks, *(task for task in validated if task.id not in benchmarks)]
    problems = list(_unjudged(config, to_judge))
    unmatched = list(_unmatched(config, _counts([*train.tasks, *validated])))
    cut_short = [
        f"{key}={limit}"
        for key, limit, task_set in (
            ("data.limits.train", config.data.limits.get("train"), train),
            ("data.limits.valid", config.data.limits.get("valid"), valid),
        )
        if limit is not None and task_set is not None and len(task_set.tasks) == limit
    ]
    if cut_short:
        for problem in unmatched:
            logger.warning("%s (%s: tasks that were not read may have it)", problem, ", ".join(cut_short))
        return problems
    return problems + unmatched


def _unjudged(config: Config, tasks: Sequence[Task]) -> Iterator[str]:
    if any(reward.sources is None for reward in config.rewards.values()):
        return
    routed = {source for reward in config.rewards.values() for source in reward.sources or []}
    missing = Counter({source: n for source, n in _counts(tasks).items() if source not in routed})
    if missing:
        yield (
            f"rewards: none applies to data source {_listed(missing)}; configured: "
            f"{', '.join(config.rewards) or 'none'}; set rewards.NAME.sources, or null for all"
        )


def _unmatched(config: Config, there: Counter[str]) -> Iterator[str]:
    for name, reward in config.rewards.items():
        for source in reward.sources or []:
            if source in there:
                continue
            close = _nearest(source, there)
            hint = "" if close is None else f" Did you mean {close!r}?"
            keys = "data.train or data.valid" if config.data.valid else "data.train"
            yield (
                f"rewards.{name}.sources=[{', '.join(reward.sources or [])}]: no task of {keys} has the data source "
                f"{source!r}.{hint} There are: {_listed(there)}"
            )


def _nearest(source: str, there: Mapping[str, int]) -> str | None:
    """Return the nearest name, whatever its letters' case."""
    by_lower = {name.lower(): name for name in there}
    close = difflib.get_close_matches(source.lower(), by_lower, n=1)
    return by_lower[close[0]] if close else None


def _listed(counts: Counter[str]) -> str:
    shown = [f"{source!r} ({n} task{'s' if n != 1 else ''})" for source, n in counts.most_common(SHOWN)]
    more = [f"and {len(counts) - SHOWN} others"] if len(counts) > SHOWN else []
    return ", ".join([*shown, *more])


def source_table(rewards: Mapping[str, RewardConfig], train: Sequence[Task], valid: Sequence[Task]) -> list[str]:
    """Lines: the tasks of each data source, and how many of them each reward judges."""
    trained, validated = _counts(train), _counts(valid)
    sources = list(dict.fromkeys([*(source for source, _ in trained.most_common()), *validated]))
    header = ["data source", "train", *(["valid"] if valid else []), *rewards]
    rows = [header]
    for source in sources:
        n = trained[source] + validated[source]
        judged = [reward.sources is None or source in reward.sources for reward in rewards.values()]
        cells = [" ".join(visible_lines(source)), str(trained[source]), *([str(validated[source])] if valid else [])]
        note = [] if any(judged) else ["no reward judges it, only its benchmark"]
        rows.append([*cells, *(str(n) if applies else "-" for applies in judged), *note])
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(header))]
    return ["  ".join(_aligned(row, widths)) for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """The name on the left, numbers on the right, and what comes after them as it is."""
    yield row[0].ljust(widths[0])
    yield from (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=False))
    yield from row[len(widths) :]


def _counts(tasks: Sequence[Task]) -> Counter[str]:
    return Counter(task.data_source for task in tasks)
