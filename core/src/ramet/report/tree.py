"""One group as the page's data: every segment once, at the rollout that owns it, and forks where they begin.

Tokens are shown one by one: a record holds a segment's text and ids, and the tokenizer knows where one token ends.
"""

from __future__ import annotations

import json
import logging
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ramet.rollout.scoring import ScoredRollout
from ramet.types import Rollout, Segment, SegmentKind, ToolRecord

if TYPE_CHECKING:
    from ramet.rollout.record import GroupRecord

logger = logging.getLogger(__name__)
TOKENIZER = "tokenizer.json"
TOKEN_TEXTS = "token_texts.json"  # of the recording of `ramet demo`: id -> text of each token in it
Node = dict[str, Any]  # JSON; the keys are those that the page's script reads


class Splitter(Protocol):
    def __call__(self, segment: Segment) -> list[str] | None:
        """One text per token, joining to the segment's text; None where that is impossible."""
        ...


def no_splitter(segment: Segment) -> list[str] | None:
    """Split nothing, for runs whose tokenizer is not found: entropies are then drawn as bars."""
    return None


def find_splitter(folders: Sequence[Path]) -> Splitter:
    """A splitter from recorded texts of tokens, or from the first folder that holds a fast tokenizer, if the library
    `tokenizers` is installed.
    """
    recorded = next((folder / TOKEN_TEXTS for folder in folders if (folder / TOKEN_TEXTS).is_file()), None)
    if recorded is not None:
        return RecordedTexts(json.loads(recorded.read_text(encoding="utf-8")))
    tokenizer_file = next((folder / TOKENIZER for folder in folders if (folder / TOKENIZER).is_file()), None)
    if tokenizer_file is None:
        return no_splitter
    try:
        return TokenizerSplitter(tokenizer_file)
    except ImportError:
        logger.info("report: library tokenizers is not installed, so tokens are not shown one by one")
    except Exception as error:  # the library raises bare Exception for a broken file
        logger.warning("report: %s could not be read, so tokens are not shown one by one: %s", tokenizer_file, error)
    return no_splitter


@dataclass(frozen=True, slots=True)
class RecordedTexts:
    """Looks every token up, for tokenizers whose tokens have the same text wherever they are."""

    texts: Mapping[str, str]

    def __call__(self, segment: Segment) -> list[str] | None:
        texts = [self.texts.get(str(token), "") for token in segment.token_ids]
        return texts if "".join(texts) == segment.text else None


class TokenizerSplitter:
    """Decodes token by token. A character of several tokens is shown at the last of them."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(file))

    def __call__(self, segment: Segment) -> list[str] | None:
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        try:
            texts = [stream.step(self._tokenizer, token) or "" for token in segment.token_ids]
        except Exception:  # an id or a byte sequence that the library refuses
            return None
        joined = "".join(texts)
        rest = segment.text[len(joined) :]  # an unfinished character, which is still in the stream
        if not texts or segment.text != joined + rest or rest.strip("\ufffd"):
            return None
        texts[-1] += rest
        return texts


def group_data(record: GroupRecord, index: int, split: Splitter, credit: Iterable[Node] = ()) -> Node:
    """The group as JSON data. `index` is its position in the step, as in a link `#s3/g2`; `credit` has rows of
    `ramet credit`, this group's among them.
    """
    scored, worth = record.group.rollouts, _worth(record, index, credit)
    by_id = {scored_rollout.rollout.id: scored_rollout.rollout for scored_rollout in scored}
    return {
        "step": record.step,
        "index": index,
        "task": record.group.task.id,
        "source": record.group.task.data_source,
        "question": record.group.task.question,
        "gold": list(record.group.task.answer),
        "prompt": _prompt(scored),
        "rollouts": [
            _rollout(scored_rollout, by_id, record.advantages.get(scored_rollout.rollout.id), split, worth)
            for scored_rollout in scored
        ],
    }


def _worth(record: GroupRecord, index: int, credit: Iterable[Node]) -> dict[int, list[float | None]]:
    """Return what turns were worth, with the limits of the interval, by the segment that was sampled in them."""
    rollouts = {f"{record.step}/{index}/{scored.rollout.id}": scored.rollout for scored in record.group.rollouts}
    return {
        id(segment): [_number(row["worth"][name]) for name in ("mean", "low", "high")]
        for row in credit
        if row["rollout"] in rollouts
        for segment in rollouts[row["rollout"]].segments
        if segment.kind is SegmentKind.TURN and segment.turn == row["turn"]
    }


def _prompt(scored: Sequence[ScoredRollout]) -> Node | None:
    if not scored:
        return None
    segments = scored[0].rollout.segments[: _n_prompt(scored[0].rollout)]
    return {"text": "".join(s.text for s in segments), "n": sum(len(s) for s in segments)}


def _rollout(
    scored: ScoredRollout,
    by_id: dict[str, Rollout],
    advantages: array[float] | None,
    split: Splitter,
    worth: Mapping[int, list[float | None]],
) -> Node:
    rollout = scored.rollout
    start = _own_start(rollout, by_id)
    segments = list(_segments(rollout, start, advantages, split, worth))
    first_turn = (rollout.fork_turn or 0) if rollout.parent in by_id else 0
    calls = [call for call in rollout.tool_calls if call.turn >= first_turn]
    return {
        "id": rollout.id,
        "parent": rollout.parent,
        "at": _anchor(rollout, by_id),
        "turn": rollout.fork_turn,
        "reason": {name: _number(value) for name, value in rollout.fork_reason.items()},
        "stop": str(rollout.stop),
        "answer": rollout.answer,
        "reward": _number(scored.reward),
        "parts": {name: _number(value) for name, value in scored.parts.items()},
        "reasons": dict(scored.reasons),
        "token_rewards": {str(at): _number(value) for at, value in scored.token_rewards.items()},
        "turn_rewards": [
            [t, _number(v)] for t, v in enumerate(rollout.turn_rewards) if t >= first_turn and v is not None
        ],
        "infos": [[t, _json(info)] for t, info in enumerate(rollout.infos) if t >= first_turn and info],
        "masked": _masked(rollout),
        "sampled": rollout.n_sampled_tokens,
        "own": _mean_advantage(rollout, advantages, start, len(rollout.segments)),
        "shared": _mean_advantage(rollout, advantages, 0, start),
        "stats": {name: _number(value) for name, value in rollout.stats.items()},
        "segments": segments,
        "calls": _attach(segments, calls),
    }


def _masked(rollout: Rollout) -> list[str] | None:
    """Why the rollout is in neither statistics nor loss: an infrastructure failure, or a reward that left it out."""
    if rollout.fault is not None:
        return [rollout.fault.where, rollout.fault.message]
    return None if rollout.left_out is None else [rollout.left_out, "left out on purpose"]


def _anchor(rollout: Rollout, by_id: dict[str, Rollout]) -> list[Any] | None:
    """`[owner, i]`: this fork begins before the i-th own segment of `owner`; None for a root.

    The owner is the parent or, for a fork that begins no later than its parent did, an ancestor of the parent.
    """
    owner = by_id.get(rollout.parent) if rollout.parent is not None else None
    if owner is None:
        return None
    while owner.parent in by_id and rollout.n_shared <= owner.n_shared:
        owner = by_id[owner.parent]
    return [owner.id, max(0, rollout.n_shared - _own_start(owner, by_id))]


def _own_start(rollout: Rollout, by_id: dict[str, Rollout]) -> int:
    """Index of the first segment that no other rollout shows."""
    shared = rollout.n_shared if rollout.parent in by_id else 0
    return max(shared, _n_prompt(rollout))


def _n_prompt(rollout: Rollout) -> int:
    return next((i for i, s in enumerate(rollout.segments) if s.kind is not SegmentKind.PROMPT), len(rollout.segments))


def _segments(
    rollout: Rollout,
    start: int,
    advantages: array[float] | None,
    split: Splitter,
    worth: Mapping[int, list[float | None]],
) -> Iterable[Node]:
    for segment, offset in list(_response(rollout))[start - _n_prompt(rollout) :]:
        node: Node = {"kind": str(segment.kind), "turn": segment.turn, "text": segment.text, "n": len(segment)}
        if rollout.thread_starts:
            node["thread"] = segment.thread
        if segment.is_sampled:
            node["version"] = segment.policy_version
            node["tokens"] = split(segment)
            node["entropies"] = _numbers(segment.entropies)
            node["logprobs"] = _numbers(segment.logprobs)
            node["advantages"] = _constant_or_list(advantages, offset, len(segment))
        if id(segment) in worth:
            node["worth"] = worth[id(segment)]
        yield node


def _response(rollout: Rollout) -> Iterable[tuple[Segment, int]]:
    """The segments after the prompt, each with its first position on the response axis."""
    position = 0
    for segment in rollout.segments[_n_prompt(rollout) :]:
        yield segment, position
        position += len(segment)


def _mean_advantage(rollout: Rollout, advantages: array[float] | None, first: int, last: int) -> float | None:
    """Average over the sampled tokens of these segments; None if there are none or the rollout got no advantages."""
    if advantages is None:
        return None
    skipped = _n_prompt(rollout)
    values: list[float] = []
    for index, (segment, offset) in enumerate(_response(rollout), start=skipped):
        if first <= index < last and segment.is_sampled:
            values.extend(advantages[offset : offset + len(segment)])
    return _number(sum(values) / len(values)) if values else None


def _attach(segments: Sequence[Node], calls: Sequence[ToolRecord]) -> list[Node]:
    """Put each call at the result of its turn. Returns the calls without a result, as when infrastructure failed.

    An insertion that comes first is an environment's first observation, and no result.
    """
    without_result: list[Node] = []
    results = [s for s in segments[1:] if s["kind"] == SegmentKind.RESULT]
    for call in calls:
        here = next((s for s in results if s["turn"] == call.turn), None)
        (without_result if here is None else here.setdefault("calls", [])).append(_call(call))
    return without_result


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(dict(data), ensure_ascii=False, default=repr)


def _call(call: ToolRecord) -> Node:
    return {
        "name": call.name,
        "turn": call.turn,
        "arguments": _json(call.arguments),
        "status": str(call.status),
        "text": call.text,
        "wait_s": _number(call.wait_s),
        "run_s": _number(call.run_s),
        "attempts": call.attempts,
        "marks": [name for name, is_set in (("cached", call.cached), ("truncated", call.truncated)) if is_set],
    }


def _constant_or_list(values: array[float] | None, offset: int, n: int) -> Any:
    if values is None or n == 0:
        return None
    part = [_number(value) for value in values[offset : offset + n]]
    return part[0] if len(set(part)) == 1 else part


def _numbers(values: Iterable[float] | None) -> list[float | None] | None:
    return None if values is None else [_number(value, 3) for value in values]


def _number(value: float | None, digits: int = 4) -> float | None:
    """Rounded, since the page shows no more; None for what JSON lacks."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
