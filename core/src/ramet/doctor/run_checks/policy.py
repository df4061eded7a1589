"""The policy: sure from the start, collapsed, or exploding in entropy or length."""

from __future__ import annotations

from collections.abc import Iterator

from ramet.doctor import thresholds as t
from ramet.doctor.reading import (
    REWARD,
    Seen,
    finding,
    finite,
    groups_of,
    number,
    percent,
    rises,
    severity,
    shown,
    thirds,
)
from ramet.types import Finding, RecordedGroup, Severity, StoredRun


def sure(run: StoredRun) -> Iterator[Finding]:
    """The rollouts of a group are copies of each other: from the first step, or later."""
    groups = [group for group in run.groups if group.kind == "step" and _roots(group) > 1]
    if not groups:
        return
    first, last = ([g for g in groups if g.step == end.step] for end in (groups[0], groups[-1]))
    at_first, at_last = _copied(first), _copied(last)
    level = severity(at_first, t.COPIES_LOOK, t.COPIES_WRONG)
    if level is not None and len(first) >= t.FEWEST_GROUPS // 2:
        level = Severity.WARNING if rises(run) else level
        yield _copies(run, first, at_first, level, "sure", "the policy is sure from the start")
    elif at_last >= t.COPIES_WRONG and len(last) >= t.FEWEST_GROUPS // 2 and not rises(run):
        yield _copies(run, last, at_last, Severity.PROBLEM, "collapsed", "the policy has collapsed")


def _copies(
    run: StoredRun, groups: list[RecordedGroup], share: float, level: Severity, name: str, what: str
) -> Finding:
    entropies = finite(run, "rollout/entropy")
    nats = f"; entropy {entropies[0]:.3g} nats, {entropies[-1]:.3g} at the end" if entropies else ""
    fix = (
        "policy.lr (lower), train.entropy_coef or train.kl_coef (higher); begin again from an earlier checkpoint"
        if name == "collapsed"
        else f"rollout.temperature={shown(run, 'rollout.temperature', 1.0)} (1 is usual), or a start that is less "
        "sure: fewer epochs of SFT, more varied traces"
    )
    text = (
        f"step {groups[0].step}: in {percent(share)} of {len(groups)} groups all rollouts from the prompt are the same "
        f"text{nats}"
    )
    return finding(name, level, what, text, fix, [Seen(group, group.group.rollouts[0]) for group in groups])


def _roots(group: RecordedGroup) -> int:
    return sum(rollout.parent is None for rollout in group.group.rollouts)


def _copied(groups: list[RecordedGroup]) -> float:
    """The share of groups whose rollouts from the prompt all have the same text."""
    texts = [{rollout.sampled for rollout in group.group.rollouts if rollout.parent is None} for group in groups]
    return sum(len(own) == 1 for own in texts) / max(1, len(texts))


def entropy_grows(run: StoredRun) -> Iterator[Finding]:
    """The entropy grows without end: the policy forgets."""
    values = finite(run, "rollout/entropy")
    if len(values) < 2:
        return
    first, last = values[0], thirds(values)[1]
    if last < t.ENTROPY_TIMES * first or last - first < t.ENTROPY_MORE_LOOK or rises(run):
        return
    yield finding(
        "entropy-grows",
        Severity.PROBLEM if last - first >= t.ENTROPY_MORE_WRONG else Severity.WARNING,
        "the entropy explodes",
        f"rollout/entropy is {first:.3g} nats in the first step and {last:.3g} at the end; the reward does not rise",
        f"{_bonus(run)}policy.lr (lower), train.kl_coef (higher), policy_loss.params.clip_high (lower)",
        _of_last_step(run),
    )


def _bonus(run: StoredRun) -> str:
    """Return the coefficient of the entropy, which is the first to change where it is not 0."""
    coef = number(run, "train.entropy_coef")
    return f"train.entropy_coef={coef:g} (0), " if coef else ""


def length_grows(run: StoredRun) -> Iterator[Finding]:
    """Rollouts become longer, or are cut more and more, and earn no more."""
    values, cut = finite(run, "rollout/sampled_tokens_mean"), finite(run, "rollout/stop/length") or [0.0]
    if len(values) < 2 or rises(run):
        return
    first, last = values[0], thirds(values)[1]
    longer = last >= t.LENGTH_TIMES * first and last - first >= t.LENGTH_MORE
    cut_more = cut[0] < t.CUT_LOOK / 2 and thirds(cut)[1] >= t.CUT_LOOK
    if not longer and not cut_more:
        return
    yield finding(
        "length-grows",
        Severity.PROBLEM if thirds(cut)[1] >= t.CUT_WRONG else Severity.WARNING,
        "rollouts grow longer",
        f"{first:.0f} sampled tokens in the first step, {last:.0f} at the end; {percent(cut[0])} are cut by "
        f"rollout.max_response_tokens in the first step, {percent(thirds(cut)[1])} at the end. No reward is gained",
        "a reward that pays for length (rewards.NAME), train.loss_aggregation, policy.lr (lower)",
        _of_last_step(run),
    )


def reward_falls(run: StoredRun) -> Iterator[Finding]:
    """The reward was higher before, and the tasks have not become harder by design."""
    if run.option("data.order") == "curriculum":
        return
    values = finite(run, REWARD)
    size = max(2, len(values) // 3)
    means = [sum(values[i : i + size]) / size for i in range(len(values) - size + 1)]
    if len(values) < 2 * size or max(means) - means[-1] < max(t.REWARD_FALL, t.REWARD_FALL_SHARE * max(means)):
        return
    best = means.index(max(means)) + 1
    yield finding(
        "reward-falls",
        Severity.PROBLEM if means[-1] <= t.REWARD_LOST * max(means) else Severity.WARNING,
        "the reward falls again",
        f"{REWARD} is {max(means):.3f} in the steps {best} to {best + size - 1} and {means[-1]:.3f} in the last {size}",
        "policy.lr (lower, or policy.schedule=linear), train.kl_coef (higher); train.keep_best with a validation",
        _of_last_step(run),
    )


def _of_last_step(run: StoredRun) -> list[Seen]:
    groups = groups_of(run)
    return [Seen(group, group.group.rollouts[0]) for group in groups if group.step == groups[-1].step]
