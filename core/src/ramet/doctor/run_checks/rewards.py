"""Rewards: right answers that earn nothing, groups without differences, one source or one part that rises alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from ramet.doctor import thresholds as t
from ramet.doctor.reading import (
    REWARD,
    Seen,
    finding,
    groups_of,
    mean,
    percent,
    played,
    quoted,
    rises,
    severity,
    thirds,
    trend,
)
from ramet.types import Finding, RecordedGroup, Severity, StoredRun

BOX = re.compile(r"\\boxed\{(.*)\}|\\text\{(.*)\}")
TAIL = 80  # characters of the last turn in which an answer that was not read is looked for


def misjudged(run: StoredRun) -> Iterator[Finding]:
    """Answers that equal the gold, or replies that end with it, earn nothing."""
    seen = [one for one in played(run) if one.reward is not None and one.rollout.task.answer]
    right = [one for one in seen if _is_right(one)]
    if len(seen) < t.FEWEST_ROLLOUTS or len(right) < t.MISJUDGED_RIGHT * len(seen):
        return
    most = max(one.reward or 0.0 for one in seen)
    missed = [one for one in right if (one.reward or 0.0) <= 0.0 or (one.reward or 0.0) <= most / 4]
    level = severity(len(missed) / len(right), t.MISJUDGED_LOOK, t.MISJUDGED_WRONG)
    if level is None or len(missed) < t.MISJUDGED_RIGHT * len(seen):
        return
    one = missed[0]
    parts = ", ".join(f"{name} {value:g}" for name, value in sorted(one.score.parts.items()))
    took = "no answer" if one.rollout.answer is None else f"the answer {quoted(one.rollout.answer)}"
    yield finding(
        "misjudged",
        level,
        "right answers earn nothing",
        f"{len(missed)} of {len(right)} rollouts whose answer equals the gold have a reward of {one.reward:g} or "
        f"less (as {took} for the gold {quoted(one.rollout.task.answer[0])}: {parts})",
        "the reward (rewards.NAME), the column it compares with (data.columns), or what it takes as the answer "
        "(rollout_step.params.answer, the reward's extraction)",
        missed,
    )


def _is_right(one: Seen) -> bool:
    """Whether the answer equals a gold, ends with it, or is its end; without an answer, whether the reply ends so."""
    golds = {_plain(gold) for gold in one.rollout.task.answer} - {""}
    if one.rollout.answer is None:
        reply = _plain(one.rollout.reply[-TAIL:])
        return any(_ends_with(reply, gold) for gold in golds if len(gold) > 1)
    answer = _plain(one.rollout.answer)
    return answer in golds or any(
        min(len(gold), len(answer)) > 1 and (_ends_with(answer, gold) or _ends_with(gold, answer)) for gold in golds
    )


def _plain(text: str) -> str:
    """Return what is left without case, boxes, tags, dollars and punctuation at the ends."""
    boxed = BOX.search(text)
    bare = re.sub(r"</?[\w.-]+>", " ", (boxed[1] or boxed[2] or "") if boxed else text)
    return " ".join(bare.casefold().replace("$", " ").split()).strip(" .,;:!?\"'()[]*`")


def _ends_with(text: str, gold: str) -> bool:
    """Whether a text ends with the gold as a word of its own. A number after `-` or inside another is not."""
    return re.search(rf"(?:^|[\s:=]){re.escape(gold)}$", text) is not None


def no_signal(run: StoredRun) -> Iterator[Finding]:
    """The rewards of a group are equal, so that nothing is trained."""
    groups = [group for group in groups_of(run) if group.kind == "step"]
    share = mean(run.values("group/no_signal_share"))
    level = None if share is None else severity(share, t.NO_SIGNAL_LOOK, t.NO_SIGNAL_WRONG)
    if share is None or level is None or len(groups) < t.FEWEST_GROUPS:
        return
    flat = [group for group in groups if len(_rewards(group)) == 1]
    value, times = Counter(reward for group in flat for reward in _rewards(group)).most_common(1)[0] if flat else (0, 0)
    yield finding(
        "no-signal",
        Severity.WARNING if rises(run) else level,
        "the rewards of a group do not differ",
        f"{percent(share)} of the groups have equal rewards; {times} of {len(groups)} that were read earn {value:g} "
        f"with every rollout; {_said(flat)}",
        "all too hard or too easy: other tasks (data.train, data.difficulty); also train.resample_rounds, "
        "rollout.group_size, rollout.temperature; all of one value whatever the answer: the reward (rewards.NAME)",
        [Seen(group, group.group.rollouts[0]) for group in flat],
    )


def _rewards(group: RecordedGroup) -> set[float]:
    return {score.reward for score in group.group.scores.values() if score.reward is not None}


def _said(groups: list[RecordedGroup]) -> str:
    """What a group answered, beside its gold."""
    if not groups:
        return "none of these was read"
    group = groups[0].group
    answers = list(dict.fromkeys(quoted(str(rollout.answer), 30) for rollout in group.rollouts))
    gold = quoted(group.task.answer[0], 30) if group.task.answer else "none"
    return f"in the first its answers are {', '.join(answers[:3])} for the gold {gold}"


def one_source(run: StoredRun) -> Iterator[Finding]:
    """One data source never earns a reward while others do."""
    seen = sorted(
        (one for one in played(run) if one.reward is not None), key=lambda one: one.rollout.task.data_source or ""
    )
    sources = {name: list(ones) for name, ones in groupby(seen, key=lambda one: one.rollout.task.data_source or "")}
    large = {name: ones for name, ones in sources.items() if len(ones) >= max(8, t.SOURCE_SHARE * len(seen))}
    means = {name: sum(one.reward or 0.0 for one in ones) / len(ones) for name, ones in large.items()}
    if len(means) < 2:
        return
    worst, best = min(means, key=lambda name: means[name]), max(means, key=lambda name: means[name])
    if means[worst] > t.SOURCE_NONE or means[best] < t.SOURCE_SOME:
        return
    shares = ", ".join(f"{name} {value:.2f}" for name, value in means.items())
    yield finding(
        "one-source",
        Severity.PROBLEM if len(means) == 2 and not rises(run) else Severity.WARNING,
        f"the data source {worst} earns nothing",
        f"{len(large[worst])} of {len(seen)} rollouts are of {worst} and earn {means[worst]:.2f}; rewards by source: "
        f"{shares}. All that is learned comes from the others",
        "the rewards that score it (rewards.NAME.sources), its golds (data.columns), or its share (data.weights)",
        large[worst],
    )


def one_part(run: StoredRun) -> Iterator[Finding]:
    """Validation falls, or one part of the reward does, while the reward of training rises."""
    training = run.values(REWARD)
    if trend(training) <= t.RISE_SE:
        return
    first, last = thirds(training)
    parts = {name: run.values(name) for name in _parts(run)}
    falling = {name: values for name, values in parts.items() if _falls(values)}
    rising = [name for name, values in parts.items() if trend(values) > t.RISE_SE and name not in falling]
    carried = f"; {', '.join(rising)} rises alone" if rising and len(parts) > 1 else ""
    valid = {name: run.values(name) for name in run.metrics if _is_validation(name)}
    fallen = {name: values for name, values in valid.items() if len(values) > 1 and _drop(values) >= t.VALID_FALL}
    if not fallen and not falling:
        return
    name, values = next(iter((fallen or falling).items()))
    fell = f"{name} falls from {max(values[:-1]) if fallen else thirds(values)[0]:.3f} to {values[-1]:.3f}"
    yield finding(
        "hacked",
        Severity.PROBLEM,
        "training rises, validation falls" if fallen else "one part of the reward rises, another falls",
        f"{REWARD} rises from {first:.3f} to {last:.3f} while {fell}{carried}",
        "what training rewards is not what is wanted: rewards.NAME.weight, rewards.NAME.combine=multiply, or another "
        "reward; train.keep_best=valid/reward keeps the best checkpoint",
        sorted(played(run)[-64:], key=lambda one: -(one.reward or 0.0)),
    )


def _parts(run: StoredRun) -> list[str]:
    own = ("reward/mean", "reward/std", REWARD, "reward/unjudged_rollouts")
    return [name for name in run.metrics if name.startswith("reward/") and name not in own]


def _falls(values: list[float]) -> bool:
    first, last = thirds(values)
    return trend(values) < -t.RISE_SE and first - last >= t.PART_CHANGE


def _is_validation(name: str) -> bool:
    return name.startswith("valid/") and name not in ("valid/tool_use", "valid/masked_share") and "pass@" not in name


def _drop(values: list[float]) -> float:
    """Return how far the last value, or the one before if that is higher, is below the best before them."""
    return max(values[:-1]) - max(values[-2:] if len(values) > 3 else values[-1:])
