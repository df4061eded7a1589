"""Finished rollouts written by hand, for the checks of rewards and benchmarks. No tokenizer: one token per byte."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ramet.types import Origin, Rollout, Segment, SegmentKind, StopReason, Task


def written_rollout(
    task: Task, turns: Sequence[str], *, results: Sequence[str] = (), answer: str | None = None, id: str = "0"
) -> Rollout:
    """A rollout whose policy wrote `turns`; `results[i]` is what was inserted after turn i."""
    segments = [_inserted(SegmentKind.PROMPT, 0, task.question)]
    for turn, text in enumerate(turns):
        segments.append(_sampled(turn, text))
        if turn < len(results):
            segments.append(_inserted(SegmentKind.RESULT, turn, results[turn]))
    stop = StopReason.END if answer is None else StopReason.ANSWER
    return Rollout(id=id, task=task, segments=tuple(segments), stop=stop, answer=answer)


def answered_rollout(task: Task, answer: str) -> Rollout:
    """A rollout that gives `answer` in the usual tags and as its final answer."""
    return written_rollout(task, [f"<think>I know it.</think><answer>{answer}</answer>"], answer=answer)


def empty_rollout(task: Task) -> Rollout:
    """A rollout whose policy ended its turn without writing anything."""
    return written_rollout(task, [""])


def _sampled(turn: int, text: str) -> Segment:
    ids = array("i", list(text.encode()))
    return Segment(
        origin=Origin.SAMPLED,
        kind=SegmentKind.TURN,
        turn=turn,
        text=text,
        token_ids=ids,
        logprobs=array("f", [-0.5] * len(ids)),
        entropies=array("f", [0.5] * len(ids)),
        policy_version=0,
    )


def _inserted(kind: SegmentKind, turn: int, text: str) -> Segment:
    return Segment(origin=Origin.INSERTED, kind=kind, turn=turn, text=text, token_ids=array("i", list(text.encode())))
