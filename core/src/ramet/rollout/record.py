"""The record of a step on disk: one JSON line per group, the segment tree with everything that training used.

A step is one file, or a folder of parts (`part_K.jsonl.gz`) with an index, which says the part of each group.

A segment that rollouts share is written once per group and referred to by its index. Tool calls, infos and rewards of
turns are a fork's own; earlier ones are its parent's. Those from a stored prefix are the rollout's. Token ids,
log-probabilities, entropies and advantages are base64 of little-endian int32 and float32. Reading gives back equal
objects, with shared segments shared again.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import logging
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ramet.config.secrets import hide
from ramet.errors import ConfigError
from ramet.io.atomic import open_atomic
from ramet.io.json_values import as_object
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.types import (
    CallStatus,
    Fault,
    Message,
    Origin,
    PrefixSource,
    Rollout,
    Segment,
    SegmentKind,
    StopReason,
    Task,
    ThreadStart,
    ToolRecord,
    ToolSchema,
)

logger = logging.getLogger(__name__)
INDEX = "index.json"  # of a record in parts
UNREADABLE = (ConfigError, OSError, ValueError, KeyError, TypeError, RecursionError)  # of a broken file
SCHEMA = 2
# A line is a group: 16 rollouts of 32k tokens take about 10 MB. Text that repeats itself packs up to 1 : 300.
LINE_BYTES, LINE_RATIO = 64 << 20, 20  # of the packed file's size, whichever is more
FILE_BYTES, FILE_RATIO = 1 << 30, 300
LEVEL = 1  # of gzip: 6 takes 2.4 times as long, for a file that is 8 % smaller
T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """One group of one step. `advantages`: rollout id -> one float32 per response token; empty in evaluation."""

    step: int
    group: ScoredGroup
    advantages: Mapping[str, array[float]] = field(default_factory=dict)
    number: int | None = None  # of the group, in the order of admission (`train.staleness`)
    greedy: tuple[float | None, ...] = ()  # the reward of its greedy rollout, None: masked; empty: no such rollout


def write_records(path: Path, records: Iterable[GroupRecord]) -> None:
    """Write `.jsonl.gz`. The same records give the same bytes; the file appears complete or not at all."""
    path = Path(path)
    with (
        open_atomic(path) as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=raw, mtime=0) as packed,
    ):
        for record in records:
            packed.write(record_line(record))


def read_records(path: Path) -> Iterator[GroupRecord]:
    """Groups in the order in which they were written. A torn end is reported and left out.

    Raises `ConfigError` for a missing file, a broken line that is not the last, another schema version, and a file that
    unpacks to more than a record can be.
    """
    path = Path(path)
    if (path / INDEX).is_file():
        yield from _read_parts(path)
        return
    if not path.is_file():
        raise ConfigError(f"no rollout file {str(path)!r}")
    broken: str | None = None
    for number, line in enumerate(_lines(path), start=1):
        if broken is not None:
            raise ConfigError(broken)
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            broken = f"{path}, line {number}: not JSON: {error}"
            continue
        where = f"{path}, line {number}"
        try:
            record = record_of(data, where)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ConfigError(f"{where}: no record of a group: {type(error).__name__}: {error}") from error
        yield record
    if broken is not None:
        logger.warning("%s (the last line; it is left out)", broken)


def part_path(folder: Path, number: int) -> Path:
    return folder / f"part_{number:03d}.jsonl.gz"


def _read_parts(folder: Path) -> Iterator[GroupRecord]:
    try:
        parts = [int(number) for number in json.loads((folder / INDEX).read_bytes())["parts"]]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{folder / INDEX}: no index of a record: {type(error).__name__}: {error}") from error
    readers = {number: read_records(part_path(folder, number)) for number in set(parts)}
    for group, number in enumerate(parts):
        record = next(readers[number], None)
        if record is None:
            raise ConfigError(f"{part_path(folder, number)}: ends before group {group} of the step")
        yield record


def _lines(path: Path) -> Iterator[bytes]:
    """One at a time, and never more than a record can have: a small file may unpack to a thousand times its size."""
    size, unpacked = path.stat().st_size, 0
    longest, most = max(LINE_BYTES, LINE_RATIO * size), max(FILE_BYTES, FILE_RATIO * size)
    try:
        with gzip.open(path, "rb") as packed:
            for number in itertools.count(1):
                line = packed.readline(longest + 1)
                if not line:
                    return
                unpacked += len(line)
                if len(line) > longest:
                    raise _bomb(f"{path}, line {number}", longest, size)
                if unpacked > most:
                    raise _bomb(str(path), most, size)
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        logger.warning("%s is torn (%s): everything after the last complete line is left out", path, error)


def _bomb(where: str, most: int, size: int) -> ConfigError:
    return ConfigError(
        f"{where}: unpacks to more than {most} bytes, from a file of {size}: damaged, or made to fill the memory"
    )


def record_line(record: GroupRecord) -> bytes:
    """One line of JSON, ASCII, with its end."""
    return json.dumps(record_body(record), separators=(",", ":"), default=as_object).encode("ascii") + b"\n"


def record_body(record: GroupRecord) -> dict[str, Any]:
    """The line as an object for `json.dumps(…, default=as_object)`."""
    segments: dict[int, tuple[int, Segment]] = {}
    for scored in record.group.rollouts:
        for segment in scored.rollout.segments:
            segments.setdefault(id(segment), (len(segments), segment))
    index = {key: number for key, (number, _) in segments.items()}
    rollouts = {scored.rollout.id: scored.rollout for scored in record.group.rollouts}
    return {
        "schema": SCHEMA,
        "step": record.step,
        "task": _task_data(record.group.task),
        "segments": [_segment_data(segment) for _, segment in segments.values()],
        "rollouts": [
            {**_rollout_data(s, index, record.advantages), **_agent_rewards(s.rollout, rollouts)}
            for s in record.group.rollouts
        ],
        **({} if record.number is None else {"number": record.number}),
        **({"greedy": list(record.greedy)} if record.greedy else {}),
    }


def _task_data(task: Task) -> dict[str, Any]:
    """A task without schemas is written as it was before tasks could have some."""
    return {name: value for name, value in as_object(task).items() if name != "schemas" or value is not None}


def _segment_data(segment: Segment) -> dict[str, Any]:
    return {
        "origin": segment.origin,
        "kind": segment.kind,
        "turn": segment.turn,
        "mask": int(segment.is_sampled),
        "text": segment.text,
        "ids": _pack(segment.token_ids),
        "logprobs": _pack(segment.logprobs),
        "entropies": _pack(segment.entropies),
        "version": segment.policy_version,
        **({"thread": segment.thread} if segment.thread else {}),
    }


def _rollout_data(
    scored: ScoredRollout, index: Mapping[int, int], advantages: Mapping[str, array[float]]
) -> dict[str, Any]:
    rollout = scored.rollout
    return {
        "id": rollout.id,
        "parent": rollout.parent,
        "fork_turn": rollout.fork_turn,
        "fork_token": rollout.fork_token,
        **({"fork_reason": dict(rollout.fork_reason)} if rollout.fork_reason else {}),
        "n_shared": rollout.n_shared,
        "prefix": None if rollout.prefix is None else asdict(rollout.prefix),
        "segments": [index[id(segment)] for segment in rollout.segments],
        **({"threads": [[s.thread, s.n_segments] for s in rollout.thread_starts]} if rollout.thread_starts else {}),
        "stop": rollout.stop,
        "answer": rollout.answer,
        "fault": None if rollout.fault is None else _fault_data(rollout.fault),
        "left_out": rollout.left_out,
        "tool_calls": [_call_data(call) for call in rollout.tool_calls if call.turn >= (rollout.fork_turn or 0)],
        "infos": [dict(info) for info in rollout.infos[rollout.fork_turn or 0 :]],
        "turn_rewards": list(rollout.turn_rewards[rollout.fork_turn or 0 :]),
        "state_keys": list(rollout.state_keys[rollout.fork_turn or 0 :]),
        "stats": dict(rollout.stats),
        "reward": scored.reward,
        "parts": dict(scored.parts),
        "token_rewards": {str(k): v for k, v in scored.token_rewards.items()},
        **({"reasons": dict(scored.reasons)} if scored.reasons else {}),
        "advantages": _pack(advantages.get(rollout.id)),
    }


def _agent_rewards(rollout: Rollout, rollouts: Mapping[str, Rollout]) -> dict[str, Any]:
    """Rewards that agents' rollouts have: of tokens, and a fork's own for turns that it shares with its parent."""
    fork_turn = rollout.fork_turn or 0
    shared = rollout.turn_rewards[:fork_turn]
    parent = rollouts[rollout.parent].turn_rewards[:fork_turn] if rollout.parent is not None else ()
    tokens = {str(position): reward for position, reward in rollout.token_rewards.items()}
    return {
        **({"shared_turn_rewards": list(shared)} if shared != parent else {}),
        **({"agent_token_rewards": tokens} if tokens else {}),
    }


def _fault_data(fault: Fault) -> dict[str, Any]:
    """Hide secrets: a client's exception may quote its URL, with the key in it."""
    return {**asdict(fault), "message": hide(fault.message)}


def _call_data(call: ToolRecord) -> dict[str, Any]:
    data = {name: getattr(call, name) for name in ToolRecord.__dataclass_fields__}
    return {**data, "text": hide(call.text)} if call.status is CallStatus.INFRA else data


def record_of(data: Mapping[str, Any], where: str) -> GroupRecord:
    """Read a record from a line's JSON. Raises `ConfigError` for another schema, and what `read_records` catches."""
    if data.get("schema") != SCHEMA:
        raise ConfigError(f"{where}: rollout schema {data.get('schema')!r}; this ramet reads {SCHEMA}")
    raw = data["task"]
    task = Task(
        id=raw["id"],
        prompt=tuple(Message(**message) for message in raw["prompt"]),
        answer=tuple(raw["answer"]),
        data_source=raw["data_source"],
        tools=None if raw["tools"] is None else tuple(raw["tools"]),
        metadata=raw["metadata"],
        schemas=None if raw.get("schemas") is None else tuple(ToolSchema(**schema) for schema in raw["schemas"]),
    )
    segments = [_segment(body) for body in data["segments"]]
    rollouts: dict[str, ScoredRollout] = {}
    for body in data["rollouts"]:
        rollouts[body["id"]] = _scored(body, task, segments, rollouts)
    packed = {body["id"]: _floats(body["advantages"]) for body in data["rollouts"]}
    return GroupRecord(
        step=data["step"],
        group=ScoredGroup(task=task, rollouts=tuple(rollouts.values())),
        advantages={id: values for id, values in packed.items() if values is not None},
        number=data.get("number"),
        greedy=tuple(data.get("greedy", ())),
    )


def _segment(data: Mapping[str, Any]) -> Segment:
    return Segment(
        origin=Origin(data["origin"]),
        kind=SegmentKind(data["kind"]),
        turn=data["turn"],
        text=data["text"],
        token_ids=_ints(data["ids"]),
        logprobs=_floats(data["logprobs"]),
        entropies=_floats(data["entropies"]),
        policy_version=data["version"],
        thread=data.get("thread", 0),
    )


def _scored(
    data: Mapping[str, Any], task: Task, segments: list[Segment], earlier: Mapping[str, ScoredRollout]
) -> ScoredRollout:
    own_calls = tuple(ToolRecord(**{**call, "status": CallStatus(call["status"])}) for call in data["tool_calls"])
    parent, fork_turn = data["parent"], data["fork_turn"]
    before = None if parent is None else earlier[parent].rollout
    shared_rewards = before.turn_rewards[:fork_turn] if before else ()
    rollout = Rollout(
        id=data["id"],
        task=task,
        segments=tuple(segments[i] for i in data["segments"]),
        thread_starts=tuple(ThreadStart(*start) for start in data.get("threads", ())),
        stop=StopReason(data["stop"]),
        answer=data["answer"],
        parent=parent,
        fork_turn=fork_turn,
        fork_token=data.get("fork_token", 0),  # records of earlier versions lack it
        fork_reason=data.get("fork_reason", {}),
        n_shared=data["n_shared"],
        prefix=None if data.get("prefix") is None else PrefixSource(**data["prefix"]),
        tool_calls=tuple(call for call in (before.tool_calls if before else ()) if call.turn < fork_turn) + own_calls,
        infos=(before.infos[:fork_turn] if before else ()) + tuple(data["infos"]),
        turn_rewards=tuple(data.get("shared_turn_rewards", shared_rewards)) + tuple(data["turn_rewards"]),
        token_rewards={int(position): reward for position, reward in data.get("agent_token_rewards", {}).items()},
        state_keys=(before.state_keys[:fork_turn] if before else ()) + tuple(data.get("state_keys", ())),
        fault=None if data["fault"] is None else Fault(**data["fault"]),
        left_out=data["left_out"],
        stats=data["stats"],
    )
    tokens = {int(k): v for k, v in data["token_rewards"].items()}
    return ScoredRollout(
        rollout=rollout,
        reward=data["reward"],
        parts=data["parts"],
        token_rewards=tokens,
        reasons=data.get("reasons", {}),
    )


def _pack(values: array[Any] | None) -> str | None:
    if values is None:
        return None
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")


def _ints(packed: str) -> array[int]:
    return _unpack(packed, array("i"))


def _floats(packed: str | None) -> array[float] | None:
    return None if packed is None else _unpack(packed, array("f"))


def _unpack(packed: str, into: array[T]) -> array[T]:
    into.frombytes(base64.b64decode(packed))
    if sys.byteorder == "big":
        into.byteswap()
    return into
