"""Micro-batches: many sequences in one forward pass, none of which sees another.

Two layouts, equally exact. *Packed*: one long row of sequences, separated by position ids that begin again at 0.
*Padded*: one row per sequence, padded on the right, where causal attention hides the padding. Flash attention
knows where sequences end, so packing costs nothing there. Other kernels pay for the full square of a packed row, and
the cheaper layout is chosen by counting.

Packing leaks without an error with a key-value cache or without position ids: transformers then builds a plain causal
mask. So the forward pass gives both, and a test compares with one sequence at a time.

Shapes: B rows of S positions are fed; n of their positions predict a trained token; T is the response axis, the
responses of all sequences one after another.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.policy.batching.attention_plan import AttentionPlan
from ramet.policy.batching.rows import Ids
from ramet.policy.batching.trie import Positions, Trie
from ramet.policy.host_memory import sent


class TokenRow(Protocol):
    """A sequence as packing reads it: a prompt, and a response whose tokens are trained where `mask` is True."""

    @property
    def prompt_ids(self) -> Ids: ...
    @property
    def response_ids(self) -> Ids: ...  # [T]
    @property
    def mask(self) -> NDArray[np.bool_]: ...  # [T]
    @property
    def n_tokens(self) -> int: ...  # of both
    @property
    def where(self) -> str: ...  # for messages


class PackedLayout(StrEnum):
    PACKED = "packed"
    PADDED = "padded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a layout, in comparable units: a token's matrix products, and a pair of positions in attention."""

    token: float
    pair: float
    best_tokens: int  # more tokens in one pass are no faster
    call_pairs: float = 0.0  # pairs that cost as much as calling an attention kernel once more

    def packed(self, lengths: Sequence[int]) -> float:
        tokens = sum(lengths)
        return self.token * tokens + self.pair * tokens**2

    def padded(self, lengths: Sequence[int]) -> float:
        tokens = len(lengths) * max(lengths)
        return self.token * tokens + self.pair * tokens * max(lengths)

    def shared(self, trie: Trie) -> float:
        """Return the cost if prefixes are computed once; for one sequence the cost of `packed`, but for long passes."""
        cost = self.token * trie.n_tokens + self.pair * (2 * trie.n_pairs - trie.n_tokens)
        return cost * LONG_PASS if trie.n_tokens > 2 * self.best_tokens else cost


CALL_OPERATIONS = 4e6  # measured on a CPU: so many take as long as the overhead of a call
LONG_PASS = 1.15  # measured: a token's cost in a pass of four times `best_tokens`, relative to a pass of `best_tokens`
CPU_TOKENS = 2048  # measured: beyond it the activations of a small model leave the cache (1.3 s instead of 0.8 s)


def model_cost(hidden_size: int, device: torch.device) -> Cost:
    """Per layer about 12 H^2 weights (2 operations each) a token, and 4 H operations a pair."""
    best = CPU_TOKENS if device.type == "cpu" else sys.maxsize
    return Cost(token=6.0 * hidden_size, pair=1.0, best_tokens=best, call_pairs=CALL_OPERATIONS / (4 * hidden_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The sequences of one forward pass, and the positions of its results on the response axis T of `rows`."""

    rows: tuple[int, ...]  # indices into the rows that were packed; T has their responses in this order
    input_ids: Tensor  # [B, S]
    position_ids: Tensor  # [B, S]
    predict: Tensor  # [n] the position in the flat [B * S] that predicts each trained token: the one before it
    targets: Tensor  # [n] the trained tokens
    response: Tensor  # [n] the position of each trained token on [T]
    lengths: tuple[int, ...]  # of the rows' responses; their sum is T
    n_tokens: int  # of the sequences, without padding; prefixes that are computed once count once
    # Of a row of runs (`batching/shared.py`), where predict and targets are [u]: predictions that rows have in common
    # are computed once.
    attention: AttentionPlan | None = None  # None: sequences follow one another, or have a row each
    expand: Tensor | None = None  # [n] which of the u predictions is each trained token's; None: u = n, one each

    def to(self, device: torch.device) -> MicroBatch:
        return MicroBatch(
            rows=self.rows,
            input_ids=sent(self.input_ids, device),
            position_ids=sent(self.position_ids, device),
            predict=sent(self.predict, device),
            targets=sent(self.targets, device),
            response=sent(self.response, device),
            lengths=self.lengths,
            n_tokens=self.n_tokens,
            attention=None if self.attention is None else self.attention.to(device),
            expand=None if self.expand is None else sent(self.expand, device),
        )

    def on_responses(self, predicted: Tensor) -> Tensor:
        """`[T]` from one value for each prediction; 0 on tokens that are not trained."""
        values = predicted if self.expand is None else predicted.index_select(0, self.expand)
        return values.new_zeros(sum(self.lengths)).index_put((self.response,), values)


def first_fit(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Bins of indices with at most `budget` tokens: longest first, each into the first bin that has room.

    A sequence over the budget gets its own bin. The order is stable, so equal lengths give equal bins.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for index in _longest_first(lengths):
        for i, n_free in enumerate(room):
            if lengths[index] <= n_free:
                bins[i].append(index)
                room[i] -= lengths[index]
                break
        else:
            bins.append([index])
            room.append(budget - lengths[index])
    return bins


def similar_lengths(lengths: Sequence[int], budget: int, spread: float = 0.85) -> list[list[int]]:
    """Bins of sequences of similar length: at most `budget` tokens with padding, the shortest at least `spread` times
    the longest, so that there is little padding.
    """
    bins: list[list[int]] = []
    longest = 0
    for index in _longest_first(lengths):
        fits = bins and (len(bins[-1]) + 1) * longest <= budget and lengths[index] >= spread * longest
        if not fits:
            bins.append([])
            longest = lengths[index]
        bins[-1].append(index)
    return bins


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: -lengths[i])


def micro_batches(rows: Sequence[TokenRow], *, budget: int, cost: Cost | None) -> list[MicroBatch]:
    """Cut rows into micro-batches of at most `budget` tokens. `cost` None: the attention kernel knows sequence borders.

    Raises `ValueError` for a row without a prompt: nothing would predict its first token.
    """
    lengths = [row.n_tokens - 1 for row in rows]
    return [micro_batch(rows, indices, layout) for indices, layout in plan(lengths, budget=budget, cost=cost)]


def plan(lengths: Sequence[int], *, budget: int, cost: Cost | None) -> list[tuple[list[int], PackedLayout]]:
    """Return the sequences that share each pass, by index, and their layout in it."""
    if cost is None:
        return [(indices, PackedLayout.PACKED) for indices in first_fit(lengths, budget)]
    budget = min(budget, cost.best_tokens)
    out = []
    for indices in similar_lengths(lengths, budget):
        bin_lengths = [lengths[i] for i in indices]
        out.append(
            (
                indices,
                PackedLayout.PACKED if cost.packed(bin_lengths) < cost.padded(bin_lengths) else PackedLayout.PADDED,
            )
        )
    return out


def empty_micro_batch() -> MicroBatch:
    """Feeds one token and predicts none: for a rank whose others have more micro-batches."""
    return MicroBatch(
        rows=(),
        input_ids=torch.zeros(1, 1, dtype=torch.int64),
        position_ids=torch.zeros(1, 1, dtype=torch.int64),
        predict=torch.zeros(0, dtype=torch.int64),
        targets=torch.zeros(0, dtype=torch.int64),
        response=torch.zeros(0, dtype=torch.int64),
        lengths=(),
        n_tokens=0,
    )


def micro_batch(rows: Sequence[TokenRow], indices: Sequence[int], layout: PackedLayout) -> MicroBatch:
    """The chosen rows in this layout. The last token of a sequence predicts nothing and is not fed."""
    sequences = [fed(rows[i]) for i in indices]
    # [B, S]: one row of all sequences, or one row for each
    width = sum(map(len, sequences)) if layout is PackedLayout.PACKED else max(map(len, sequences))
    height = 1 if layout is PackedLayout.PACKED else len(sequences)
    # Position ids of padding continue the count: a second 0 in a row would make transformers build a mask for packed
    # rows.
    input_ids = np.zeros(height * width, np.int64)
    position_ids = np.tile(np.arange(width), height)
    places = []  # of each sequence, on the flat [B * S]
    start = 0
    for sequence in sequences:
        places.append(np.arange(start, start + len(sequence)))
        input_ids[places[-1]] = sequence
        position_ids[places[-1]] = np.arange(len(sequence))
        start += len(sequence) if layout is PackedLayout.PACKED else width
    predictions = Predictions.of([rows[i] for i in indices], places)
    return MicroBatch(
        rows=tuple(indices),
        input_ids=torch.from_numpy(input_ids.reshape(height, width)),
        position_ids=torch.from_numpy(position_ids.reshape(height, width)),
        predict=torch.from_numpy(predictions.predict),
        targets=torch.from_numpy(predictions.targets),
        response=torch.from_numpy(predictions.response),
        lengths=tuple(len(rows[i].response_ids) for i in indices),
        n_tokens=sum(map(len, sequences)),
    )


@dataclass(frozen=True, slots=True)
class Predictions:
    """The fields of `MicroBatch` for the trained tokens of some rows, one after another."""

    predict: Positions  # [n]
    targets: Positions  # [n]
    response: Positions  # [n]

    @classmethod
    def of(cls, rows: Sequence[TokenRow], places: Sequence[Positions]) -> Predictions:
        """`places` has the positions of each row's fed tokens on the flat `[B * S]`."""
        predict, targets, response = [], [], []
        first = 0  # where this row's response begins on [T]
        for row, place in zip(rows, places, strict=True):
            # Token t of the response follows position len(prompt) - 1 + t of the sequence, which predicts it.
            trained = np.flatnonzero(row.mask)
            predict.append(place[len(row.prompt_ids) - 1 + trained])
            targets.append(row.response_ids[trained])
            response.append(first + trained)
            first += len(row.response_ids)
        return cls(np.concatenate(predict), np.concatenate(targets).astype(np.int64), np.concatenate(response))


def fed(row: TokenRow) -> Ids:
    """The tokens of a row that predict others: all but its last."""
    if not len(row.prompt_ids) and row.mask[:1].any():
        raise ValueError(f"{row.where} has no prompt; at least one token needed")
    return np.concatenate([row.prompt_ids, row.response_ids])[:-1]
