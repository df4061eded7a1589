"""Micro-batches in which every prefix is computed once, and which rows go together into one.

A group is a tree: its prompt is common to all, and forks share what their parent had sampled. Here its rows are laid
out as the runs of their token trie (`batching/trie.py`), one after another in one packed row; positions follow each
token's path, and Ramet's attention lets a run see its path (`batching/attention_plan.py`). The same token after the
same tokens is computed once, whichever rollout sampled it. Results are then expanded to the rows, so that losses see
what they always see, and autograd adds up what rows share.

The group is what stays together: in one micro-batch where the budget allows, and on one rank. Rows of different groups
share too, by chance, where they meet in a micro-batch and begin alike, as with a common system prompt.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ramet.policy.batching.attention_plan import Run, attention_plan
from ramet.policy.batching.packing import Cost, MicroBatch, Predictions, fed, first_fit
from ramet.policy.batching.rows import Row
from ramet.policy.batching.trie import Trie, trie

WORTHWHILE = 0.85  # share of unique tokens below which `policy.share_prefixes=auto` shares


@dataclass(frozen=True, slots=True)
class Tree:
    """Rows that are kept together, and what they cost with prefixes computed once."""

    rows: tuple[int, ...]
    n_tokens: int  # unique ones
    n_pairs: int  # of a unique token and one that it attends to
    n_keys: int  # gathered for attention, each as often as a run sees it
    cost: float


def groups_of(rows: Sequence[Row]) -> list[list[int]]:
    """Indices of each group's rows, ascending; groups in the order of their first rows."""
    by_group: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        by_group[row.group].append(i)
    return list(by_group.values())


def group_tries(rows: Sequence[Row]) -> list[Trie]:
    """Return a trie of each group's fed tokens, in the order of first rows; `order` has indices of `rows`."""
    tries = []
    for group in groups_of(rows):
        group_trie = trie([fed(rows[i]) for i in group])
        tries.append(replace(group_trie, order=tuple(group[i] for i in group_trie.order)))
    return tries


def unique_token_share(rows: Sequence[Row]) -> float:
    """Tokens that are fed if every group's prefixes are computed once, as a share of all; 1 without rows."""
    total = sum(row.n_tokens - 1 for row in rows)
    unique = sum(group_trie.n_tokens for group_trie in group_tries(rows))
    return unique / total if total else 1.0


def trees(groups: Sequence[Trie], *, budget: int, cost: Cost, most_keys: float = math.inf) -> list[Tree]:
    """The groups; one of more unique tokens than `budget`, or of which attention would gather more than `most_keys`, is
    cut into parts that share among themselves only.
    """
    parts = (part for group in groups for part in group.cut(budget, most_keys))
    return [
        Tree(
            rows=tuple(sorted(part.order)),
            n_tokens=part.n_tokens,
            n_pairs=part.n_pairs,
            n_keys=part.n_keys,
            cost=cost.shared(part),
        )
        for part in parts
    ]


def tree_bins(whole_trees: Sequence[Tree], budget: int, most_keys: float = math.inf) -> list[list[Tree]]:
    """The trees of each micro-batch: complete ones of at most `budget` unique tokens together, of which at most
    `most_keys` are gathered.
    """
    sizes = [max(tree.n_tokens, math.ceil(tree.n_keys * budget / most_keys)) for tree in whole_trees]
    return [[whole_trees[i] for i in members] for members in first_fit(sizes, budget)]


def shared_micro_batch(rows: Sequence[Row], indices: Sequence[int], cost: Cost) -> MicroBatch:
    """The chosen rows as one packed row of the runs of their trie."""
    sequences = [fed(rows[i]) for i in indices]
    tree = trie(sequences)
    input_ids, position_ids = np.zeros((2, tree.n_tokens), np.int64)
    places = [np.zeros(0, np.int64)] * len(sequences)
    runs = []
    for i, shared, place in zip(tree.order, tree.shared, tree.positions(), strict=True):
        places[i] = place
        input_ids[place[shared:]] = sequences[i][shared:]
        position_ids[place[shared:]] = np.arange(shared, len(place))
        if len(place) > shared:
            runs.append(Run(place, len(place) - shared))
    predictions = Predictions.of([rows[i] for i in indices], places)
    # A position may predict several tokens, where rollouts fork, and rows may have a prediction in common.
    unique, expand = np.unique(predictions.predict << 32 | predictions.targets, return_inverse=True)
    return MicroBatch(
        rows=tuple(indices),
        input_ids=torch.from_numpy(input_ids[None]),
        position_ids=torch.from_numpy(position_ids[None]),
        predict=torch.from_numpy(unique >> 32),
        targets=torch.from_numpy(unique & 0xFFFFFFFF),
        response=torch.from_numpy(predictions.response),
        lengths=tuple(len(rows[i].response_ids) for i in indices),
        n_tokens=tree.n_tokens,
        attention=attention_plan(runs, call_pairs=cost.call_pairs),
        expand=torch.from_numpy(expand),
    )
