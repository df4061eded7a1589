"""`trackers=[…,samples]`: some rollouts of each step, as text: question, turns, tool results, reward with its parts.

The choice depends only on rewards, seed and step: the best, the worst, then others in an order drawn from the seed.
Rollouts without a reward are left out. In a pipe the text is the same, without colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from rich.console import Console
from rich.text import Text

from ramet.io.json_values import visible
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.types import SegmentKind

MAX_CHARS = 2000  # of one question, turn or result; the record on disk has all of it
LABEL = 10  # characters of the column that says whose text it is
STYLES = {
    SegmentKind.TURN: "default",
    SegmentKind.RESULT: "yellow",
    SegmentKind.MESSAGES: "yellow",
    SegmentKind.FORCED: "magenta",
}


def choose(groups: Sequence[ScoredGroup], n: int, *, seed: int, step: int) -> list[tuple[str, ScoredRollout]]:
    """Choose at most `n` rollouts, each with why it was chosen. Of equal rewards the first of the step is taken."""
    remaining = [rollout for group in groups for rollout in group.valid]
    picked: list[tuple[str, ScoredRollout]] = []
    for why, pick in (("best", max), ("worst", min)):
        if remaining and len(picked) < n:
            extreme = pick(remaining, key=_reward)
            remaining = [rollout for rollout in remaining if rollout is not extreme]
            picked.append((why, extreme))
    drawn = Random(f"{seed}/{step}/samples").sample(remaining, len(remaining))
    return [*picked, *(("drawn", rollout) for rollout in drawn[: n - len(picked)])]


def _reward(rollout: ScoredRollout) -> float:
    assert rollout.reward is not None  # it is valid
    return rollout.reward


class SamplePrinter:
    """Prints `n` rollouts of a step."""

    def __init__(self, n: int, *, seed: int, console: Console | None = None) -> None:
        self._n = n
        self._seed = seed
        self._console = console or Console()

    def __call__(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        samples = choose(groups, self._n, seed=self._seed, step=step) if self._n else []
        for number, (why, rollout) in enumerate(samples, start=1):
            head = f"step {step}, rollout {number} of {len(samples)} ({why}): {_title(rollout)}"
            self._print(Text(visible(head), style="bold"))
            for label, text, style in _texts(rollout):
                for line in _lines(label, text):
                    self._print(Text(line, style=style))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)


def _title(scored: ScoredRollout) -> str:
    rollout = scored.rollout
    parts = ", ".join(f"{name} {value:g}" for name, value in scored.parts.items())
    fork = "" if rollout.parent is None else f" (fork of {rollout.parent} at turn {(rollout.fork_turn or 0) + 1})"
    return (
        f"reward {scored.reward:g}{f' ({parts})' if parts else ''}, task {rollout.task.id}, path {rollout.id}{fork}, "
        f"{rollout.n_sampled_tokens} tokens, stop {rollout.stop}"
    )


def _texts(scored: ScoredRollout) -> Iterator[tuple[str, str, str]]:
    """Label, text and style."""
    yield "question", scored.rollout.task.question, "cyan"
    for segment in scored.rollout.segments:
        if segment.kind is not SegmentKind.PROMPT:
            label = f"turn {segment.turn + 1}" if segment.is_sampled else str(segment.kind)
            yield label, segment.text, STYLES[segment.kind]


def _lines(label: str, text: str) -> Iterator[str]:
    """The label before the first line, room for it before the others."""
    cut = len(text) - MAX_CHARS
    shown = text if cut <= 0 else f"{text[:MAX_CHARS]}… ({cut} characters more)"
    for i, line in enumerate(visible(shown.strip("\n")).split("\n")):
        yield f"  {label if i == 0 else '':<{LABEL}}{line}".rstrip()
