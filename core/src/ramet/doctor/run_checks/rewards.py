"""Rewards: right answers that earn nothing, groups without differences, only one source or one part that rises."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from ramet.doctor import thresholds as t
from ramet.doctor.reading import (
    REWARD,
    Seen,
    finding,
    finite,
    groups_of,
    mean,
    number,
    percent,
    quoted,
    rises,
    severity,
    thirds,
    trend,
    unmasked,
)
from ramet.errors import ConfigError
from ramet.runs.manifest import MANIFEST, read_manifest
from ramet.types import Finding, RecordedGroup, Severity, StoredRun

MARKUP = re.compile(r"</?answer>|<\|[^|<>]*\|>|</s>")
BOX = re.compile(r"\\(?:boxed|text)\{(.*)")  # and all that follows on the line
PENALTIES = frozenset({"length", "overlong", "tool_cost", "repetition"})  # 0 where there is nothing to punish
TAIL = 80  # characters of the last turn in which an answer that was not read is looked for


def misjudged(run: StoredRun) -> Iterator[Finding]:
    """Answers that equal the gold, or replies that end with it, earn nothing."""
    right, missed, _ = _unpaid(run)
    level = severity(len(missed) / max(1, len(right)), t.MISJUDGED_LOOK, t.MISJUDGED_WRONG)
    if level is None:
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


def outweighed(run: StoredRun) -> Iterator[Finding]:
    """Right answers earn nothing, although one of several rewards takes them for right."""
    right, _, unpaid = _unpaid(run)
    if len(unpaid) < max(1.0, t.MISJUDGED_LOOK * len(right)):
        return
    name, times = Counter(_takes_most(run, one) for one in unpaid).most_common(1)[0]
    one = next(one for one in unpaid if _takes_most(run, one) == name)
    parts = ", ".join(f"{part} {value:g}" for part, value in sorted(one.score.parts.items()))
    yield finding(
        "outweighed",
        Severity.WARNING,
        f"the reward {name} outweighs right answers",
        f"{len(unpaid)} of {len(right)} rollouts whose answer equals the gold are taken for right and earn little; in "
        f"{times} of them most is taken away by {name} (as a reward of {one.reward:g}: {parts})",
        f"rewards.{name}.weight (lower), rewards.{name}.combine, if right answers are to earn more than others",
        [one for one in unpaid if _takes_most(run, one) == name],
    )


def _takes_most(run: StoredRun, one: Seen) -> str:
    """The name of the reward that lowers the sum most. One that multiplies by 1 takes nothing."""
    effects = {
        name: number(run, f"rewards.{name}.weight", 1.0) * value - (run.option(f"rewards.{name}.combine") == "multiply")
        for name, value in one.score.parts.items()
        if "/" not in name
    }
    return min(effects, key=lambda name: effects[name])


def _unpaid(run: StoredRun) -> tuple[list[Seen], list[Seen], list[Seen]]:
    """The rollouts with a right answer; of them, the ones that earn nothing and that no reward takes for right; the
    ones that earn nothing and that a reward takes for right. Lists of under 5 % of all rollouts are empty.
    """
    seen = [one for one in unmasked(run) if one.reward is not None and one.rollout.task.answer]
    right = [one for one in seen if _is_right(one)]
    most, best = max((one.reward or 0.0 for one in seen), default=0.0), _best_of_judges(seen, right)
    little = [one for one in right if (one.reward or 0.0) <= max(0.0, most / 4)]
    taken = {one.ref for one in little if any(one.score.parts.get(name, 0.0) >= best[name] for name in best)}
    lists = right, [one for one in little if one.ref not in taken], [one for one in little if one.ref in taken]
    least = max(1.0, t.MISJUDGED_RIGHT * len(seen)) if len(seen) >= t.FEWEST_ROLLOUTS else math.inf
    first, second, third = (own if len(own) >= least else [] for own in lists)
    return first, second, third


def _best_of_judges(seen: list[Seen], right: list[Seen]) -> dict[str, float]:
    """The largest value of each of several rewards that gives wrong answers less than half of it on average. A right
    answer that gets as much is judged well, and other rewards outweigh it.
    """
    names = {name for one in seen for name in one.score.parts if "/" not in name}
    is_right = {one.ref for one in right}
    others = [one for one in seen if one.ref not in is_right]
    wrong = [one for one in others if one.rollout.answer is not None] or others
    values = {name: [one.score.parts.get(name, 0.0) for one in seen] for name in names if len(names) > 1}
    of_wrong = {name: mean([one.score.parts.get(name, 0.0) for one in wrong]) or 0.0 for name in values}
    return {name: max(own) for name, own in values.items() if max(own) > 0.0 and of_wrong[name] < max(own) / 2}


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
    """Return what is left without case, boxes, the answer's tags, dollars and punctuation at the ends."""
    boxes = (inside.rpartition("}") for inside in BOX.findall(text))
    bare = MARKUP.sub(" ", next((inside for inside, closed, _ in boxes if closed), text))
    return " ".join(bare.casefold().replace("$", " ").split()).strip(" .,;:!?\"'()[]*`")


def _ends_with(text: str, gold: str) -> bool:
    """Whether a text ends with the gold as a word of its own. A number after `-` or inside another is not."""
    return text.endswith(gold) and text[: -len(gold)][-1:] in ("", *string.whitespace, *":=")


def no_signal(run: StoredRun) -> Iterator[Finding]:
    """The rewards of a group are equal, so that nothing is trained."""
    groups = [group for group in groups_of(run) if group.kind == "step"]
    share = mean(run.values("group/no_signal_share"))
    level = None if share is None else severity(share, t.NO_SIGNAL_LOOK, t.NO_SIGNAL_WRONG)
    if share is None or level is None or len(groups) < t.FEWEST_GROUPS or _learns_otherwise(run):
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


def _learns_otherwise(run: StoredRun) -> bool:
    """Whether rollouts are trained though rewards are equal: a group has one, or most have advantages nevertheless, as
    from a teacher. What a critic gives, or a KL in the reward, does not count: it may be all that there is.
    """
    silent, rows = (mean(run.values(f"train/{name}")) for name in ("rows_without_signal", "rows"))
    if number(run, "rollout.group_size", 8) == 1:
        return True
    if silent is None or not rows or run.values("critic/loss") or run.values("train/kl_reward"):
        return False
    return silent / rows < t.NO_SIGNAL_LOOK


def _rewards(group: RecordedGroup) -> set[float]:
    return {score.reward for score in group.group.scores.values() if score.reward is not None}


def _said(groups: list[RecordedGroup]) -> str:
    """Quote a group's answers and its gold."""
    if not groups:
        return "none of these was read"
    group = groups[0].group
    answers = list(dict.fromkeys(quoted(str(rollout.answer), 30) for rollout in group.rollouts))
    gold = quoted(group.task.answer[0], 30) if group.task.answer else "none"
    return f"in the first its answers are {', '.join(answers[:3])} for the gold {gold}"


def one_source(run: StoredRun) -> Iterator[Finding]:
    """One data source never earns a reward, or its groups never differ, while others do."""
    groups: dict[str, list[RecordedGroup]] = {}
    for group in groups_of(run):
        if _rewards(group):
            groups.setdefault(group.group.task.data_source or "", []).append(group)
    total = sum(map(len, groups.values()))
    large = {name: own for name, own in groups.items() if len(own) >= max(4, t.SOURCE_SHARE * total)}
    if len(large) < 2:
        return
    earned = {name: sum(map(_mean_reward, own)) / len(own) for name, own in large.items()}
    signal = {name: sum(len(_rewards(group)) > 1 for group in own) / len(own) for name, own in large.items()}
    worst = min(large, key=lambda name: (signal[name], earned[name]))
    nothing = earned[worst] <= t.SOURCE_NONE and max(earned.values()) >= t.SOURCE_SOME
    if not nothing and not (signal[worst] <= t.SOURCE_SIGNAL and max(signal.values()) >= t.SOURCE_OTHER):
        return
    listed = ", ".join(f"{name} {earned[name]:.2f} ({percent(signal[name])} of its groups differ)" for name in large)
    yield finding(
        "one-source",
        Severity.PROBLEM if nothing and not rises(run) else Severity.WARNING,
        f"the data source {worst} trains nothing",
        f"{len(large[worst])} of {total} groups are of {worst}; rewards by source: {listed}. All that is learned comes "
        "from the others",
        "the rewards that score it (rewards.NAME.sources), its golds (data.columns), or its share (data.weights)",
        [Seen(group, group.group.rollouts[0]) for group in large[worst]],
    )


def _mean_reward(group: RecordedGroup) -> float:
    rewards = [score.reward for score in group.group.scores.values() if score.reward is not None]
    return sum(rewards) / len(rewards)


def dead_part(run: StoredRun) -> Iterator[Finding]:
    """One of several rewards gives 0 to every rollout."""
    seen = [one for one in unmasked(run) if one.reward is not None]
    names = sorted({name for one in seen for name in one.score.parts if "/" not in name})
    for name in names:
        values = [one.score.parts[name] for one in seen if name in one.score.parts]
        if len(names) < 2 or _is_penalty(run, name) or len(values) < t.FEWEST_ROLLOUTS or any(values):
            continue
        combined = run.option(f"rewards.{name}.combine", "add")
        yield finding(
            "dead-part",
            Severity.PROBLEM if combined == "multiply" else Severity.WARNING,
            f"the reward {name} is always 0",
            f"{name} gives 0 to all {len(values)} rollouts that were read (rewards.{name}.combine={combined}); one "
            f"writes {quoted(seen[0].rollout.sampled)}",
            f"what {name} asks for (rewards.{name}.params) is what the model never writes: teach it (ramet sft), "
            "describe it (rollout_step.instruction), or leave the reward out",
            seen,
        )


def _is_penalty(run: StoredRun, name: str) -> bool:
    return (run.option(f"rewards.{name}.use") or name) in PENALTIES or number(run, f"rewards.{name}.weight", 1.0) < 0.0


def one_part(run: StoredRun) -> Iterator[Finding]:
    """Validation falls, or one part of the reward does, while the reward of training rises."""
    training = finite(run, REWARD)
    if trend(training) <= t.RISE_SE:
        return
    first, last = thirds(training)
    parts = {f"reward/{name}": finite(run, f"reward/{name}") for name in _parts(run)}
    least = max(t.PART_CHANGE, t.PART_SHARE * (last - first))
    falling = {name: values for name, values in parts.items() if _fall(values) >= least}
    rising = [name for name, values in parts.items() if trend(values) > t.RISE_SE and name not in falling]
    carried = f"; only {', '.join(rising)} rises" if rising and len(parts) > 1 else ""
    valid = {name: finite(run, name) for name in run.metrics if _is_validation(name)}
    least = max(t.VALID_FALL, t.VALID_SE * math.sqrt(0.5 / valid_rollouts(run)))  # of two means of a share
    fallen = {name: values for name, values in valid.items() if len(values) > 1 and _drop(values) >= least}
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
        sorted(unmasked(run)[-64:], key=lambda one: -(one.reward or 0.0)),
    )


def _parts(run: StoredRun) -> list[str]:
    """The names of the rewards, without what one reports of its own value and without penalties."""
    own = ("mean", "std", "roots_mean", "unjudged_rollouts")
    names = [name.removeprefix("reward/") for name in run.metrics if name.startswith("reward/")]
    return [name for name in names if "/" not in name and name not in own and not _is_penalty(run, name)]


def _fall(values: list[float]) -> float:
    """Return by how much a reward falls, before its weight: a small one may be the reason. 0 if it may be noise."""
    first, last = thirds(values)
    return first - last if trend(values) < -t.RISE_SE else 0.0


def _is_validation(name: str) -> bool:
    return name.startswith("valid/") and name not in ("valid/tool_use", "valid/masked_share") and "pass@" not in name


def _drop(values: list[float]) -> float:
    """Return how far the last validation is below the best before it; of four or more, means of two neighbours."""
    pairs = [(a + b) / 2 for a, b in pairwise(values)] if len(values) > 3 else values
    return max(pairs[:-1]) - pairs[-1]


def valid_rollouts(run: StoredRun) -> int:
    """Return how many rollouts a validation has."""
    try:
        tasks = read_manifest(run.folder / MANIFEST).data["valid"].tasks
    except (ConfigError, OSError, KeyError):
        tasks = t.VALID_TASKS
    return max(1, tasks * int(number(run, "train.eval_k", 1)))
