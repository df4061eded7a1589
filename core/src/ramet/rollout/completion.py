"""An engine's completion: whether it may become part of a rollout, and the segments that it becomes.

An engine that lost its weights, or computes nonsense, still replies. Its tokens would train the policy on numbers that
belong to no policy, so they are refused here, where every completion passes, whatever engine it is from.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from ramet.engines.protocol import Completion, FinishReason
from ramet.rollout.tree import LiveRollout, n_decoded
from ramet.types import Generation, Origin, Segment, SegmentKind

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

DRIFT_EVERY = 4  # the rollouts of a group whose texts are tokenised again, and the forks of a rollout


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of the weights that may have sampled a rollout: from the engine's when the rollout started to the newest
    that it has now.
    """

    oldest: int
    newest: Callable[[], int]

    def problem(self, versions: array[int]) -> str | None:
        newest = self.newest()
        if not versions or (min(versions) >= self.oldest and max(versions) <= newest):
            return None
        sampled = _span(min(versions), max(versions))
        return f"its tokens are of policy version {sampled}; expected {_span(self.oldest, newest)}"


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
    """Append the sampled tokens to the rollout. Its text leaves out the token that ended the sequence.

    The generation is the complete turn: a fork in the middle of one begins with tokens of its parent.
    """
    before = live.sampled_in_turn
    shared = "".join(segment.text for segment in before)
    ids = completion.token_ids
    ended = completion.finish is FinishReason.END and len(ids) > 0 and ids[-1] in encoder.eos_ids
    turn_ids = array("i")
    for segment in before:
        turn_ids.extend(segment.token_ids)
    turn_ids.extend(ids[:-1] if ended else ids)
    text = encoder.decode(turn_ids)
    for segment in sampled_segments(completion, live.turn, text[len(shared) :], encoder):
        live.append(segment)
    live.add_stat("sampled_tokens", len(ids))
    live.add_stat("prompt_tokens", completion.prompt_tokens)
    live.add_stat("cached_tokens", completion.cached_tokens)
    if live.path[-1] % DRIFT_EVERY == 0:  # tokenising is a fifth of what the loop costs
        live.add_stat("drifted_segments", float(encoder.markup(text) != turn_ids))
    return Generation(
        text=text,
        stop=completion.stop if completion.finish is FinishReason.STOP else None,
        finished=completion.finish is FinishReason.END,
        truncated=completion.finish is FinishReason.LENGTH,
    )


def ended_at_stop(completion: Completion, shared: str, stops: Sequence[str], encoder: Encoder) -> Completion:
    """The completion up to a stop string that began in `shared`, the text of the turn before it; otherwise as it is.

    Engines look for stop strings only in their own samples. So after a fork in the middle of a turn they do not see one
    that the fork's first tokens complete.
    """
    text = encoder.decode(completion.token_ids)
    for stop in stops:
        for n in range(1, len(stop)):
            if shared.endswith(stop[:n]) and text.startswith(stop[n:]):
                return _cut(completion, _n_tokens(completion.token_ids, len(stop) - n, encoder), stop)
    return completion


def _n_tokens(ids: array[int], n_characters: int, encoder: Encoder) -> int:
    return next(n for n in range(1, len(ids) + 1) if len(encoder.decode(ids[:n])) >= n_characters)


def _cut(completion: Completion, n: int, stop: str) -> Completion:
    return replace(
        completion,
        token_ids=completion.token_ids[:n],
        logprobs=completion.logprobs[:n],
        entropies=completion.entropies[:n],
        policy_versions=completion.policy_versions[:n],
        finish=FinishReason.STOP,
        stop=stop,
    )


def sampled_segments(completion: Completion, turn: int, text: str, encoder: Encoder) -> Iterator[Segment]:
    """Give one segment for each version of the weights that sampled; their texts join to the turn's text."""
    ids = completion.token_ids
    has_logprobs, has_entropies = len(completion.logprobs) == len(ids), len(completion.entropies) == len(ids)
    shown = 0  # characters of `text` that earlier segments have
    for version, start, end in _version_runs(completion.policy_versions):
        upto = len(text) if end == len(ids) else max(shown, n_decoded(ids[:end], text, encoder))
        yield Segment(
            origin=Origin.SAMPLED,
            kind=SegmentKind.TURN,
            turn=turn,
            text=text[shown:upto],
            token_ids=ids[start:end],
            logprobs=completion.logprobs[start:end] if has_logprobs else None,
            entropies=completion.entropies[start:end] if has_entropies else None,
            policy_version=version,
        )
        shown = upto


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
