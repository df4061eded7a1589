"""The first difference of a rollout that ran again from its record, and the kind of change that makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from ramet.types import Rollout, SegmentKind, StopReason, ToolRecord

AROUND = 8  # tokens of text before and after the first token that differs
LONGEST = 120  # characters of a shown text
Decode = Callable[[Sequence[int]], str]


class DifferenceKind(StrEnum):
    """The changed part."""

    PROMPT = "prompt"  # the prompt, or the chat template: text that is inserted, with equal tool results
    SAMPLED = "sampled"  # the weights, the sampling or the engine: other tokens after an equal context
    CALL = "call"  # the parser or the limits: other calls, another end or answer from equal tokens
    TOOL = "tool"  # the tool: another result of an equal call


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`token`: the position in the rollout, prompt included; of calls and results the last token before them."""

    kind: DifferenceKind
    turn: int
    token: int
    what: str
    recorded: str
    now: str

    def __str__(self) -> str:
        where = f"turn {self.turn}, token {self.token}, {self.kind}: {self.what}"
        return f"{where}: recorded {self.recorded}, now {self.now}"


@dataclass(frozen=True, slots=True)
class _ComparedTurn:
    """The parts of one turn, and the number of tokens before it."""

    start: int
    sampled: list[int]
    inserted: list[int]
    calls: list[ToolRecord]


def first_difference(recorded: Rollout, now: Rollout, decode: Decode) -> Difference | None:
    """Compare two rollouts with one thread, up to the end of the record; None if they do not differ.

    A rollout that the branch policy stopped has a record up to there. `now` may have failed after a difference.
    """
    old, new = _turns(recorded), _turns(now)
    first = _tokens(DifferenceKind.PROMPT, 0, 0, "the prompt", _head(recorded), _head(now), decode)
    if first is not None:
        return first
    for number, turn in enumerate(old):
        is_last = number == len(old) - 1
        if is_last and recorded.stop is StopReason.PRUNED:
            return None
        if number >= len(new):
            return _end(recorded, now, number - 1, turn.start)
        if (difference := _turn(number, turn, new[number], decode)) is not None:
            return difference
        if is_last and (len(new) > len(old) or (recorded.stop, recorded.answer) != (now.stop, now.answer)):
            return _end(recorded, now, number, turn.start + len(turn.sampled))
    return None


def _turn(number: int, old: _ComparedTurn, new: _ComparedTurn, decode: Decode) -> Difference | None:
    shorter = min(len(old.sampled), len(new.sampled))
    if len(old.sampled) != len(new.sampled) and old.sampled[:shorter] == new.sampled[:shorter] and shorter:
        return Difference(
            kind=DifferenceKind.CALL,
            turn=number,
            token=old.start + shorter,
            what="the turn ends elsewhere, by its stop strings or limits",
            recorded=f"after {len(old.sampled)} tokens ({_shown(decode(old.sampled[-AROUND:]))})",
            now=f"after {len(new.sampled)} ({_shown(decode(new.sampled[-AROUND:]))})",
        )
    sampled = _tokens(DifferenceKind.SAMPLED, number, old.start, "sampled tokens", old.sampled, new.sampled, decode)
    if sampled is not None:
        return sampled
    end = old.start + len(old.sampled)
    if (calls := _calls(number, end, old.calls, new.calls)) is not None:
        return calls
    # Without a call the text is the rollout step's own; without any text a limit left no room for the result.
    kind = DifferenceKind.PROMPT if old.calls and new.inserted else DifferenceKind.CALL
    return _tokens(kind, number, end, "inserted text", old.inserted, new.inserted, decode)


def _calls(turn: int, end: int, old: Sequence[ToolRecord], new: Sequence[ToolRecord]) -> Difference | None:
    made, makes = [(c.name, dict(c.arguments)) for c in old], [(c.name, dict(c.arguments)) for c in new]
    if made != makes:
        return Difference(
            kind=DifferenceKind.CALL,
            turn=turn,
            token=end - 1,
            what="tool calls",
            recorded=_named(made),
            now=_named(makes),
        )
    for before, after in zip(old, new, strict=True):
        if (before.status, before.text) != (after.status, after.text):
            return Difference(
                kind=DifferenceKind.TOOL,
                turn=turn,
                token=end - 1,
                what=f"result of {before.name}",
                recorded=f"{before.status} {_shown(before.text)}",
                now=f"{after.status} {_shown(after.text)}",
            )
    return None


def _end(recorded: Rollout, now: Rollout, turn: int, token: int) -> Difference:
    return Difference(
        kind=DifferenceKind.CALL,
        turn=max(0, turn),
        token=token - 1,
        what="the end",
        recorded=f"{recorded.stop}, answer {recorded.answer!r:.{LONGEST}}",
        now=f"{now.stop}, answer {now.answer!r:.{LONGEST}}",
    )


def _tokens(
    kind: DifferenceKind, turn: int, start: int, what: str, old: Sequence[int], new: Sequence[int], decode: Decode
) -> Difference | None:
    """Compare tokens that begin at position `start`."""
    if old == new:
        return None
    at = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new)))
    recorded, now = (_shown(decode(ids[max(0, at - AROUND) : at + AROUND])) for ids in (old, new))
    return Difference(kind=kind, turn=turn, token=start + at, what=what, recorded=recorded, now=now)


def _head(rollout: Rollout) -> list[int]:
    """Return the tokens in front of the first turn: the prompt, and an environment's first observation."""
    head = takewhile(lambda segment: segment.kind is not SegmentKind.TURN and not segment.turn, rollout.segments)
    return [token for segment in head for token in segment.token_ids]


def _turns(rollout: Rollout) -> list[_ComparedTurn]:
    turns: list[_ComparedTurn] = []
    n, head = 0, len(_head(rollout))
    for segment in rollout.segments:
        if n >= head:
            turns += [_ComparedTurn(n, [], [], []) for _ in range(len(turns), segment.turn + 1)]
            part = turns[segment.turn].sampled if segment.kind is SegmentKind.TURN else turns[segment.turn].inserted
            part.extend(segment.token_ids)
        n += len(segment)
    for call in rollout.tool_calls:
        turns[call.turn].calls.append(call)
    return turns


def _named(calls: Sequence[tuple[str, dict[str, object]]]) -> str:
    return _shown(", ".join(f"{name}({arguments})" for name, arguments in calls)) if calls else "none"


def _shown(text: str) -> str:
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")
