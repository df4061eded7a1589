"""Rows: a rollout as the trainer sees it, position by position.

A row is built from a rollout's segments; nothing is tokenised again. Only sampled tokens are trained (`mask`). Masked
rollouts and groups with too few valid members are left out here, once, so that neither the group statistics
nor the loss can see them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ramet.errors import PluginError
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.types import Segment, SegmentKind, StopReason
from ramet.types.algorithm import MIN_GROUP

Ids: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One trainable rollout. Arrays run over the response axis: everything after the prompt."""

    rollout_id: str
    task_id: str
    prompt_ids: Ids
    response_ids: Ids  # [T]
    mask: NDArray[np.bool_]  # [T] True on sampled tokens
    engine_logprobs: Floats  # [T] mu; 0 on inserted tokens
    entropies: Floats | None  # [T] the engine's, nats; 0 on inserted tokens; None: the engine gives none
    turn_ids: Ids  # [T]
    node_ids: Ids  # [T] equal exactly where rows share the very same token; unique over the step
    policy_versions: Ids  # [T] -1 on inserted tokens
    group: int
    parent: int  # row index of the parent; -1 for roots and if the parent has no row
    fork_position: int  # on T, where its own tokens begin; 0 for roots
    stop: StopReason
    n_tool_calls: int
    reward: float
    parts: Mapping[str, float]
    token_rewards: Mapping[int, float]
    thread_ids: Ids | None = None  # [T] of the thread that a token was added to; None: all are thread 0's
    contexts: tuple[Ids, ...] = ()  # of threads 1, 2, …: the tokens in front of its own
    turn_rewards: tuple[float | None, ...] = ()  # by turn, of the rollout step; may end before the last turn
    state_keys: tuple[str | None, ...] = ()  # by turn, of the environment

    @property
    def n_tokens(self) -> int:
        """Prompt and response together."""
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def where(self) -> str:
        return f"rollout {self.rollout_id!r} of task {self.task_id!r}"

    @property
    def n_trained(self) -> int:
        return int(self.mask.sum())


def scored_row(row: Row, prompt_ids: Ids, response_ids: Ids, mask: NDArray[np.bool_]) -> Row:
    """Return a sequence that is scored in the name of `row`, and never trained on: log-probabilities of the tokens
    `response_ids` `[T]` where `mask` `[T]` is True, after `prompt_ids`.
    """
    n = len(response_ids)
    return replace(
        row,
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        mask=mask,
        engine_logprobs=np.zeros(n, np.float32),
        entropies=None,
        turn_ids=np.zeros(n, np.int32),
        node_ids=np.arange(n, dtype=np.int32),
        policy_versions=np.full(n, -1, np.int32),
        token_rewards={},
        thread_ids=None,
        contexts=(),
    )


def rows_of(groups: Sequence[ScoredGroup], *, without: Collection[int] = (), min_group: int = MIN_GROUP) -> list[Row]:
    """The trainable rollouts in order of groups and branch paths; `row_metrics` says how many were left out.

    `without` leaves out groups by their number, `min_group` those with fewer valid members. Raises `PluginError` for
    sampled tokens without log-probabilities and for token rewards outside the response.
    """
    rows: list[Row] = []
    nodes = _Nodes()
    for number, group in enumerate(groups):
        if len(group.valid) >= min_group and number not in without:
            rows += _rows(group, number, len(rows), nodes)
    return rows


def rows_of_group(group: ScoredGroup, number: int) -> list[Row]:
    """Return one group's rows as `rows_of` does, but with parents and nodes numbered from 0 in the group."""
    return _rows(group, number, 0, _Nodes())


def row_metrics(
    groups: Sequence[ScoredGroup], *, without: Collection[int] = (), min_group: int = MIN_GROUP
) -> dict[str, float]:
    """Counts of the rows that `rows_of` keeps and leaves out."""
    total = sum(len(group.rollouts) for group in groups)
    valid = [len(group.valid) for group in groups]
    return {
        "train/rows": float(sum(n for i, n in enumerate(valid) if n >= min_group and i not in without)),
        "train/masked_rollouts": float(total - sum(valid)),
        "train/groups_too_small": float(sum(n < min_group for n in valid)),
        "train/groups_without_baseline": float(len(without)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVersions:
    """The policy versions of trained tokens, as far as a step needs them."""

    n: int  # tokens
    total: int  # sum of their versions
    oldest: int
    newest: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> TokenVersions:
        versions = np.concatenate([row.policy_versions[row.mask] for row in rows])
        if not len(versions):
            return cls(n=0, total=0, oldest=0, newest=0)
        return cls(n=len(versions), total=int(versions.sum()), oldest=int(versions.min()), newest=int(versions.max()))

    @classmethod
    def of_parts(cls, parts: Iterable[TokenVersions]) -> TokenVersions:
        """Return the versions of all parts together."""
        trained = [part for part in parts if part.n]
        return cls(
            n=sum(part.n for part in trained),
            total=sum(part.total for part in trained),
            oldest=min((part.oldest for part in trained), default=0),
            newest=max((part.newest for part in trained), default=0),
        )


class _Nodes:
    """Numbers the tokens of a step. Forks and their parents, masked or not, share the same segment objects. So a
    segment's tokens have the same numbers in every rollout of a group. Two groups of one task share nothing, even if
    both start from the same stored prefix.
    """

    def __init__(self) -> None:
        self._first: dict[int, int] = {}  # number of a segment's first token, by the identity of the segment
        self._next = 0

    def begin_group(self) -> None:
        self._first.clear()

    def of(self, segment: Segment) -> NDArray[Any]:
        first = self._first.setdefault(id(segment), self._next)
        self._next = max(self._next, first + len(segment))
        return np.arange(first, first + len(segment))


def _rows(group: ScoredGroup, number: int, first: int, nodes: _Nodes) -> list[Row]:
    """Return the rows of a group's valid rollouts; `first` is the index of the first of them."""
    index = {scored.rollout.id: first + i for i, scored in enumerate(group.valid)}
    nodes.begin_group()
    return [_row(scored, number, index, nodes) for scored in group.valid]


def _row(scored: ScoredRollout, group: int, index: Mapping[str, int], nodes: _Nodes) -> Row:
    rollout = scored.rollout
    assert scored.reward is not None
    prompt = [s for s in rollout.segments if s.kind is SegmentKind.PROMPT]
    response = [s for s in rollout.segments if s.kind is not SegmentKind.PROMPT]
    where = f"rollout {rollout.id!r} of task {rollout.task.id!r}"
    outside = [p for p in scored.token_rewards if not 0 <= p < rollout.n_response_tokens]
    if outside:
        raise PluginError(
            f"{where}: token reward at position {outside[0]}, but its response has {rollout.n_response_tokens} tokens"
        )
    has_entropies = all(s.entropies is not None and len(s.entropies) == len(s) for s in response if s.is_sampled)
    threads = rollout.threads[1:]
    return Row(
        rollout_id=rollout.id,
        task_id=rollout.task.id,
        prompt_ids=_token_ids(prompt),
        response_ids=_token_ids(response),
        mask=_joined([np.full(len(s), s.is_sampled) for s in response], np.bool_),
        engine_logprobs=_joined([_logprobs(s, where) for s in response], np.float32),
        entropies=_joined([_entropies(s) for s in response], np.float32) if has_entropies else None,
        turn_ids=_joined([np.full(len(s), s.turn) for s in response], np.int32),
        node_ids=_joined([nodes.of(s) for s in response], np.int32),
        policy_versions=_joined([np.full(len(s), _version(s)) for s in response], np.int32),
        group=group,
        parent=-1 if rollout.parent is None else index.get(rollout.parent, -1),
        fork_position=sum(len(s) for s in rollout.segments[: rollout.n_shared] if s.kind is not SegmentKind.PROMPT),
        stop=rollout.stop,
        n_tool_calls=len(rollout.tool_calls),
        reward=scored.reward,
        parts=scored.parts,
        token_rewards=scored.token_rewards,
        thread_ids=_joined([np.full(len(s), s.thread) for s in response], np.int32) if threads else None,
        contexts=tuple(_token_ids(thread.segments[: thread.n_context]) for thread in threads),
        turn_rewards=rollout.turn_rewards,
        state_keys=rollout.state_keys,
    )


def _token_ids(segments: Sequence[Segment]) -> Ids:
    return _joined([np.asarray(s.token_ids) for s in segments], np.int32)


def _joined(pieces: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(pieces).astype(dtype, copy=False) if pieces else np.zeros(0, dtype)


def _logprobs(segment: Segment, where: str) -> NDArray[Any]:
    if not segment.is_sampled:
        return np.zeros(len(segment), np.float32)
    if segment.logprobs is None or len(segment.logprobs) != len(segment):
        count = "none" if segment.logprobs is None else str(len(segment.logprobs))
        raise PluginError(
            f"{where}, turn {segment.turn}: the engine gave {count} log-probabilities for {len(segment)} sampled "
            "tokens; training needs one each"
        )
    return np.asarray(segment.logprobs)


def _entropies(segment: Segment) -> NDArray[Any]:
    return np.zeros(len(segment), np.float32) if segment.entropies is None else np.asarray(segment.entropies)


def _version(segment: Segment) -> int:
    return -1 if segment.policy_version is None else segment.policy_version
