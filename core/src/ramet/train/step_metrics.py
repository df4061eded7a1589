"""What a step reports about its rewards and groups, beside what rollouts and updates report themselves."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence

import numpy as np

from ramet.errors import InfraError
from ramet.policy.batching.rows import Row
from ramet.rollout.scoring import ScoredGroup, n_unjudged

logger = logging.getLogger(__name__)


def reward_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Means over valid rollouts; shares over all of them, and over groups."""
    scored = [r for group in groups for r in group.rollouts]
    valid = [r for r in scored if r.reward is not None]
    rewards = [r.reward for r in valid if r.reward is not None]
    metrics = {
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


def lag_metrics(rows: Sequence[Row], *, version: int, allowed: int) -> dict[str, float]:
    """How many updates lie between the weights that sampled a token and those of now, `version`, over trained tokens.

    Raises `InfraError` if it is more than `train.staleness` allows, or less than none.
    """
    if not rows:
        return {}
    lags = version - np.concatenate([row.policy_versions[row.mask] for row in rows])
    if lags.max() > allowed or lags.min() < 0:
        raise InfraError(
            f"tokens of policy versions {version - lags.max()} to {version - lags.min()} came in for an update of "
            f"version {version}; allowed: at most {allowed} behind it (train.staleness). An engine missed a sync"
        )
    return {"train/version_lag_mean": float(lags.mean()), "train/version_lag_max": float(lags.max())}


def warn_of_silence(step: int, groups: Sequence[ScoredGroup]) -> None:
    """Say so if the rewards of a step cannot teach anything: within every group they are all equal."""
    if groups and _no_signal(groups) == 1:
        rewards = sorted({r.reward for group in groups for r in group.valid if r.reward is not None})
        logger.warning(
            "step %d: in all %d groups the rewards are equal within the group (%s): no advantage, nothing to learn",
            step,
            len(groups),
            ", ".join(f"{reward:g}" for reward in rewards[:3]) or "none is valid",
        )


def _no_signal(groups: Sequence[ScoredGroup]) -> float:
    return sum(not gives_signal(group) for group in groups) / max(1, len(groups))


def gives_signal(group: ScoredGroup) -> bool:
    """Whether its rollouts can be told apart: two valid rewards that differ, or rewards of single tokens."""
    return len({(r.reward, *sorted(r.token_rewards.items())) for r in group.valid}) > 1
