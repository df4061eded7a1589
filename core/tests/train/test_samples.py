from __future__ import annotations

import io
from array import array

from rich.console import Console

from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.train.samples import MAX_CHARS, SamplePrinter, choose
from ramet.types import Origin, Rollout, Segment, SegmentKind, StopReason, Task, user_prompt


def segment(kind: SegmentKind, text: str, turn: int = 0) -> Segment:
    origin = Origin.SAMPLED if kind is SegmentKind.TURN else Origin.INSERTED
    return Segment(origin=origin, kind=kind, turn=turn, text=text, token_ids=array("i", [1, 2]))


def scored(path: str, reward: float | None, answer: str = "<answer>4</answer>", **fields: str | int) -> ScoredRollout:
    task = Task(id="sums/7", prompt=user_prompt("What is 2+2?"))
    segments = (
        segment(SegmentKind.PROMPT, "<user>What is 2+2?"),
        segment(SegmentKind.TURN, "Let me see.\n<python>2+2</python>"),
        segment(SegmentKind.RESULT, "<result>4</result>"),
        segment(SegmentKind.TURN, answer, turn=1),
    )
    rollout = Rollout(id=path, task=task, segments=segments, stop=StopReason.ANSWER, **fields)  # type: ignore[arg-type]
    parts = {} if reward is None else {"math": reward, "format": 1.0}
    return ScoredRollout(rollout=rollout, reward=reward, parts=parts)


def group(*rollouts: ScoredRollout) -> ScoredGroup:
    return ScoredGroup(task=rollouts[0].rollout.task, rollouts=rollouts)


GROUPS = [
    group(scored("0", 0.5), scored("1", 1.0), scored("2", 1.0), scored("3", None)),
    group(scored("4", 0.0), scored("5", 0.0), scored("6", 0.25)),
]


def chosen(n: int, *, seed: int = 1, step: int = 1) -> list[tuple[str, str]]:
    return [(why, one.rollout.id) for why, one in choose(GROUPS, n, seed=seed, step=step)]


def test_the_best_and_the_worst_come_first_and_the_first_of_equal_ones() -> None:
    assert chosen(0) == []
    assert chosen(1) == [("best", "1")]
    assert chosen(2) == [("best", "1"), ("worst", "4")]


def test_the_others_are_drawn_by_seed_and_step_and_none_comes_twice() -> None:
    everything = chosen(99)
    assert chosen(99) == everything and chosen(3) == everything[:3]
    assert sorted(path for _, path in everything) == ["0", "1", "2", "4", "5", "6"]  # 3 has no reward
    assert len({tuple(chosen(99, seed=seed, step=step)) for seed in range(3) for step in range(3)}) > 1


def printed(*rollouts: ScoredRollout, terminal: bool = False) -> str:
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=40, color_system="standard" if terminal else None
    )
    SamplePrinter(len(rollouts), seed=1, console=console)(3, [group(*rollouts)])
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_in_a_pipe_a_rollout_is_plain_text() -> None:
    one = scored("0.1", 1.0, parent="0", fork_turn=1)
    assert printed(one).splitlines() == [
        "step 3, rollout 1 of 1 (best): reward 1 (math 1, format 1), task sums/7, path 0.1 (fork of 0 at turn 2), "
        "4 tokens, stop answer",
        "  question  What is 2+2?",
        "  turn 1    Let me see.",
        "            <python>2+2</python>",
        "  result    <result>4</result>",
        "  turn 2    <answer>4</answer>",
    ]


def test_a_terminal_gets_the_same_text_with_results_in_another_colour() -> None:
    lines = printed(scored("0", 1.0), terminal=True).splitlines()
    assert "\x1b[33m  result    <result>4</result>\x1b[0m" in lines
    assert "\x1b[39m  turn 2    <answer>4</answer>\x1b[0m" in lines


def test_long_texts_are_cut_and_control_characters_are_visible() -> None:
    text = printed(scored("0", 1.0, answer="\x1b[2J" + "a" * MAX_CHARS))
    assert r"  turn 2    \x1b[2Jaaa" in text and text.endswith("aaa… (4 characters more)\n")


def test_a_step_without_rewards_prints_nothing() -> None:
    assert printed(scored("0", None)) == ""
