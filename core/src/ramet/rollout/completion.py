"""An engine's completion: whether it may become part of a rollout, and the segments that it becomes.

An engine that lost its weights, or computes nonsense, still replies. Its tokens would train the policy on numbers that
belong to no policy, so they are refused here, where every completion passes, whatever engine it is from.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import TYPE_CHECKING

from ramet.engines.protocol import Completion, FinishReason
from ramet.rollout.tree import LiveRollout
from ramet.types import Generation, Origin, Segment, SegmentKind

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder


@dataclass(frozen=True, slots=True)
class Versions:
    """Which weights may have sampled a rollout: from those that the engine had when the rollout started, to the newest
    that it has now.
    """

    oldest: int
    newest: Callable[[], int]

    def problem(self, found: array[int]) -> str | None:
        newest = self.newest()
        if not found or (min(found) >= self.oldest and max(found) <= newest):
            return None
        return (
            f"its tokens are of policy version {_span(min(found), max(found))}; expected {_span(self.oldest, newest)}"
        )


def completion_problem(completion: Completion, versions: Versions | None) -> str | None:
    """Why it cannot be used, None if it can; `versions` None allows any."""
    count = len(completion.token_ids)
    if len(completion.policy_versions) != count:
        return f"{len(completion.policy_versions)} policy versions for {count} tokens"
    if not math.isfinite(sum(completion.logprobs)):  # a sum of float32 in double precision cannot overflow
        n = sum(not math.isfinite(x) for x in completion.logprobs)
        return f"{n} of its {count} log-probabilities are not finite"
    if not math.isfinite(sum(completion.entropies)):
        return f"{sum(not math.isfinite(x) for x in completion.entropies)} of its {count} entropies are not finite"
    return None if versions is None else versions.problem(completion.policy_versions)


def append_completion(live: LiveRollout, completion: Completion, encoder: Encoder) -> Generation:
    """Append what was sampled to the rollout. Its text leaves the token out that ended the sequence."""
    ids = completion.token_ids
    ended = completion.finish is FinishReason.END and len(ids) > 0 and ids[-1] in encoder.eos_ids
    text_ids = ids[:-1] if ended else ids
    text = encoder.decode(text_ids)
    for segment in _segments(completion, live.turn, text, encoder):
        live.append(segment)
    live.add_stat("sampled_tokens", len(ids))
    live.add_stat("prompt_tokens", completion.prompt_tokens)
    live.add_stat("cached_tokens", completion.cached_tokens)
    live.add_stat("drifted_segments", float(encoder.markup(text) != text_ids))
    return Generation(
        text=text,
        stop=completion.stop if completion.finish is FinishReason.STOP else None,
        finished=completion.finish is FinishReason.END,
        truncated=completion.finish is FinishReason.LENGTH,
    )


def _segments(completion: Completion, turn: int, text: str, encoder: Encoder) -> Iterator[Segment]:
    """One for each version of the weights that sampled in this turn; their texts join to that of the turn."""
    ids, has_entropies = completion.token_ids, len(completion.entropies) == len(completion.token_ids)
    shown = 0  # characters of `text` that earlier segments have
    for version, start, end in _version_runs(completion.policy_versions):
        upto = len(text) if end == len(ids) else max(shown, _n_decoded(ids[:end], text, encoder))
        yield Segment(
            origin=Origin.SAMPLED,
            kind=SegmentKind.TURN,
            turn=turn,
            text=text[shown:upto],
            token_ids=ids[start:end],
            logprobs=completion.logprobs[start:end],
            entropies=completion.entropies[start:end] if has_entropies else None,
            policy_version=version,
        )
        shown = upto


def _n_decoded(ids: array[int], text: str, encoder: Encoder) -> int:
    """How much of a turn's text its first tokens decode to; a character that a later token completes is that one's."""
    pairs = zip(encoder.decode(ids), text, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _version_runs(versions: array[int]) -> Iterator[tuple[int, int, int]]:
    """`(version, start, end)` of each run of tokens that one version sampled."""
    if versions and versions.count(versions[0]) == len(versions):  # nearly always; this counts in C
        yield versions[0], 0, len(versions)
        return
    start = 0
    for version, run in groupby(versions):
        end = start + sum(1 for _ in run)
        yield version, start, end
        start = end


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
