"""One step's groups: run, scored while others still run, checked, and their metrics."""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ramet.cluster.interfaces import Rollouts
from ramet.config.schema import RolloutConfig
from ramet.errors import InfraError, PluginError
from ramet.event_loop import first_error
from ramet.io import repeats
from ramet.policy.batching.rows import TokenVersions
from ramet.rollout.faults import DEFECT
from ramet.rollout.plan import RolloutRequest, check_groups
from ramet.rollout.scoring import UNJUDGED, ScoredGroup, n_unjudged
from ramet.tracking.columns import SOURCE, SOURCE_REWARD
from ramet.types import Group

logger = logging.getLogger(__name__)


class Scores(Protocol):
    """The run's scorer, or what scores a validation."""

    async def score(self, group: Group) -> ScoredGroup: ...


async def play(
    rollouts: Rollouts,
    scorer: Scores,
    request: RolloutRequest,
    *,
    unscored: list[Group] | None = None,
) -> list[ScoredGroup]:
    """Groups in order of the tasks. A group is scored as soon as it is complete, while others still run. `unscored` is
    given the groups as they were before the rewards, in the same order.

    A reward that breaks the contract stops the rollouts at once.
    """
    scored: dict[int, ScoredGroup] = {}  # by the group itself: a step may have a task twice

    async def score(group: Group) -> None:
        scored[id(group)] = await scorer.score(group)

    def on_group(group: Group) -> None:
        scoring.create_task(score(group))

    async with first_error(), asyncio.TaskGroup() as scoring:
        playing = scoring.create_task(rollouts.run(request, on_group=on_group))
    check_groups(playing.result(), request.tasks, request.sizes(rollouts.group_size(request.plan)))
    if unscored is not None:
        unscored += playing.result()
    return [scored[id(group)] for group in playing.result()]


def masked_limit(rollout: RolloutConfig) -> float:
    """Return the share of a step's rollouts, or of a validation's, that infrastructure may mask."""
    return 0.2 if rollout.max_masked_share is None else rollout.max_masked_share


def check_infrastructure(groups: Sequence[ScoredGroup], limit: float) -> None:
    """Raise `InfraError` if more than `limit` of the rollouts are masked; the message names the commonest fault.

    `PluginError` if that is a defect of a plugin, which a resume would only meet again. Rollouts that rewards could not
    judge have a separate limit (`check_failures`).
    """
    rollouts = [r.rollout for group in groups for r in group.rollouts]
    faults = [r.fault for r in rollouts if r.fault is not None and not r.fault.where.startswith(UNJUDGED)]
    if len(faults) <= limit * len(rollouts):
        return
    where = Counter(fault.where for fault in faults).most_common(1)[0][0]  # of equally many the first
    message = next(f.message for f in faults if f.where == where)
    masked, allowed = (
        f"{len(faults)} of {len(rollouts)} rollouts were masked",
        f"limit rollout.max_masked_share={limit:g}",
    )
    if where.startswith(DEFECT):
        raise PluginError(f"{message}; {masked} ({allowed}), most of them by this")
    raise InfraError(f"{masked} by infrastructure faults ({allowed}); most often {where}: {message}")


def reward_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Means over valid rollouts; shares over all of them, and over groups."""
    scored = [r for group in groups for r in group.rollouts]
    valid = [r for r in scored if r.reward is not None]
    rewards = [r.reward for r in valid if r.reward is not None]
    roots = [statistics.fmean(of_group) for group in groups if (of_group := _first_roots(group))]
    metrics = {
        "reward/roots_mean": statistics.fmean(roots) if roots else float("nan"),
        "reward/mean": statistics.fmean(rewards) if rewards else float("nan"),
        "reward/std": statistics.pstdev(rewards) if rewards else float("nan"),
        "reward/unjudged_rollouts": float(n_unjudged(groups)),
        "rollout/masked_share": sum(r.rollout.fault is not None for r in scored) / max(1, len(scored)),
        "rollout/left_out_share": sum(r.rollout.left_out is not None for r in scored) / max(1, len(scored)),
        "rollout/tool_use": sum(bool(r.rollout.tool_calls) for r in valid) / max(1, len(valid)),
        "group/no_signal_share": _no_signal(groups),
    }
    names = sorted({name for r in valid for name in r.parts})
    for name in names:
        metrics[f"reward/{name}"] = statistics.fmean(r.parts[name] for r in valid if name in r.parts)
    return metrics


def _first_roots(group: ScoredGroup) -> list[float]:
    """Rewards of the rollouts from the prompt that did not fill what forks left of the budget.

    Groups that fork less are filled more, so with those the tasks that call fewer tools would weigh more.
    """
    return [
        r.reward
        for r in group.valid
        if r.reward is not None
        and r.rollout.parent is None
        and r.rollout.prefix is None
        and not r.rollout.stats.get("filled")
    ]


def source_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """The mean reward of each data source that the tasks name, over its valid rollouts."""
    rewards: dict[str, list[float]] = {}
    for group in groups:
        group_rewards = [r.reward for r in group.valid if r.reward is not None]
        if group.task.data_source and group_rewards:
            rewards.setdefault(group.task.data_source, []).extend(group_rewards)
    return {
        f"{SOURCE}{name}{SOURCE_REWARD}": statistics.fmean(source_rewards)
        for name, source_rewards in sorted(rewards.items())
    }


def lag_metrics(versions: TokenVersions, n_rows: int, *, version: int, allowed: int) -> dict[str, float]:
    """Updates between the weights that sampled a token and the current ones, `version`, over the trained tokens of
    `n_rows` rows.

    Raises `InfraError` if it is more than `train.staleness` allows, or less than none.
    """
    if not versions.n:
        raise PluginError(
            f"not one token was sampled in {n_rows} rollouts, so nothing can be trained: the rollout step ends them "
            "without ctx.generate"
        )
    if version - versions.oldest > allowed or versions.newest > version:
        raise InfraError(
            f"tokens of policy versions {versions.oldest} to {versions.newest} came in for an update of "
            f"version {version}; allowed: at most {allowed} versions older (train.staleness). An engine missed a sync"
        )
    return {
        "train/version_lag_mean": (version * versions.n - versions.total) / versions.n,
        "train/version_lag_max": float(version - versions.oldest),
    }


def warn_of_silence(step: int, groups: Sequence[ScoredGroup]) -> None:
    """Say so if the rewards of a step cannot teach anything: within every group they are all equal."""
    if groups and _no_signal(groups) == 1:
        rewards = sorted({r.reward for group in groups for r in group.valid if r.reward is not None})
        repeats.warn(
            logger,
            "rewards are equal within every group",
            "step %d: in all %d groups the rewards are equal within the group (%s): no advantage from them, nothing "
            "to learn from them; see docs/troubleshooting.md#the-reward-stays-0",
            step,
            len(groups),
            ", ".join(f"{reward:g}" for reward in rewards[:3]) or "none is valid",
            by_step=True,
        )


def warn_of_broken_tools(step: int, metrics: Mapping[str, float]) -> None:
    """Log a warning for each function tool whose calls in this step all raised exceptions of one type.

    It does not stop the run: a model that writes nonsense to a working tool does the same.
    """
    for key, n in metrics.items():
        tool, _, kind = key.partition("/exceptions/")
        if kind and n == metrics[f"{tool}/calls"]:
            repeats.warn(
                logger,
                f"all calls of a tool raised {kind}",
                "step %d: all %d calls of tool %r raised %s, and the model saw no other result: look for a bug of "
                "the tool at its first traceback in run.log",
                *(step, n, tool.removeprefix("tool/"), kind),
                by_step=True,
            )


def _no_signal(groups: Sequence[ScoredGroup]) -> float:
    return sum(not gives_signal(group) for group in groups) / max(1, len(groups))


def gives_signal(group: ScoredGroup, by: Collection[str] = ()) -> bool:
    """Whether its rollouts can be distinguished: two valid rewards that differ, or rewards of single tokens.

    `by`: two scores of one of these rewards that differ, where they apply (`rewards.NAME.resample`).
    """
    named = {tuple(r.parts.get(name) for name in by) for r in group.valid}
    if any(score is not None for scores in named for score in scores):
        return len(named) > 1
    return len({(r.reward, *sorted(r.token_rewards.items())) for r in group.valid}) > 1


class StepClock:
    """Seconds per phase of a step."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """The time since the last lap belongs to this phase."""
        now = time.monotonic()
        self._laps[phase] = self._laps.get(phase, 0.0) + now - self._last
        self._last = now

    def metrics(self) -> dict[str, float]:
        return {f"time/{phase}_s": seconds for phase, seconds in self._laps.items()}
