"""Sampling by the inverse of the cumulative distribution, at a uniform number that a counter decides.

The uniform number is a hash of the request's seed and the token's position (splitmix64: Steele, Lea and Flood, 2014).
So a token depends only on seed, position and distribution, never on the rest of the batch. Log-probabilities and
entropies are always over the full distribution at the temperature; `top_p`, `top_k`, `min_p` and the repetition penalty
only change the choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

WORD = (1 << 64) - 1
PIECE, LARGE = 256, 4096  # tokens: of a piece of a vocabulary, and of one that is searched by pieces
GOLDEN = 0x9E3779B97F4A7C15  # increment of splitmix64


def uniforms(seed: int, start: int, count: int) -> Tensor:
    """Numbers in [0, 1) for positions `start` to `start + count`, in float64."""
    with np.errstate(over="ignore"):
        state = _mix(np.array([seed & WORD], dtype=np.uint64))  # neighbouring seeds must not share a sequence
        counter = np.arange(start + 1, start + count + 1, dtype=np.uint64)
        words = _mix(state + counter * np.uint64(GOLDEN))
    return torch.from_numpy((words >> np.uint64(12)).astype(np.float64) * 2.0**-52)


def _mix(words: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How each of the R rows is sampled. `narrow` lists the rows whose choice is from a part of the distribution; None:
    no such rows.
    """

    temperature: Tensor  # [R] float32, 0 is greedy
    uniform: Tensor  # [R] float64
    any_greedy: bool
    narrow: Tensor | None = None  # int64
    top_p: Tensor | None = None  # [R] float32
    top_k: Tensor | None = None  # [R] int64, 0 is off
    min_p: Tensor | None = None  # [R] float32, 0 is off
    penalty: Tensor | None = None  # [R] float32, of `seen` tokens; 1 is off
    seen: Tensor | None = None  # [R, V] bool: prompt and response so far; None: no row has a penalty


def sample(logits: Tensor, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, log-probabilities and entropies, each `[R]`. A row that is not finite gets the token -1."""
    temperature = torch.where(draw.temperature > 0, draw.temperature, 1.0)
    logps = torch.log_softmax(logits / temperature[:, None], dim=-1)
    probs = logps.exp()
    entropies = -(probs * logps).sum(dim=-1)
    tokens = _invert(probs, draw.uniform)
    best = logits.argmax(dim=-1) if draw.any_greedy else tokens
    if draw.narrow is not None:
        rows = draw.narrow
        narrow_probs = probs[rows]
        if draw.seen is not None:
            penalised = _penalised(logits[rows], draw.seen[rows], _of(draw.penalty, rows))
            narrow_probs = torch.softmax(penalised / temperature[rows, None], dim=-1)
            best[rows] = penalised.argmax(dim=-1) if draw.any_greedy else best[rows]
        tokens[rows] = _narrowed(narrow_probs, draw, rows)
    if draw.any_greedy:
        tokens = torch.where(draw.temperature > 0, tokens, best)
    logprobs = logps.gather(1, tokens[:, None])[:, 0]
    finite = torch.isfinite(logprobs) & torch.isfinite(entropies)
    return torch.where(finite, tokens, -1), logprobs, entropies


def top_logprobs(logits: Tensor, temperature: Tensor, tokens: Tensor, k: int) -> list[tuple[float, ...]]:
    """Return the k largest log-probabilities of each row, and the sampled token's if it is not among them.

    Logits `[R, V]`, temperatures and tokens `[R]`.
    """
    logps = torch.log_softmax(logits / torch.where(temperature > 0, temperature, 1.0)[:, None], dim=-1)
    values, ids = logps.topk(min(k, logps.shape[-1]))
    sampled_logps = logps.gather(1, tokens.clamp_min(0)[:, None])[:, 0].tolist()
    among = (ids == tokens[:, None]).any(dim=1).tolist()
    return [
        tuple(row) if inside else (*row, logp)
        for row, logp, inside in zip(values.tolist(), sampled_logps, among, strict=True)
    ]


def _invert(probs: Tensor, uniform: Tensor) -> Tensor:
    """Tokens `[R]`. A large vocabulary is searched by piece and then inside it: one sum instead of all running sums."""
    size = math.gcd(probs.shape[-1], PIECE)
    if size < PIECE // 4 or probs.shape[-1] < LARGE:
        cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
        return _first_above(cumulative, uniform[:, None] * cumulative[:, -1:])
    pieces = probs.view(len(probs), -1, size)
    ends = pieces.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    wanted = uniform[:, None] * ends[:, -1:]
    piece = _first_above(ends, wanted)
    rows = torch.arange(len(probs), device=probs.device)
    inside = pieces[rows, piece].cumsum(dim=-1, dtype=torch.float64)
    rest = wanted - torch.where(piece > 0, ends[rows, piece - 1], 0.0)[:, None]
    return piece * size + _first_above(inside, rest)


def _first_above(cumulative: Tensor, wanted: Tensor) -> Tensor:
    """Rounding must not lead past the last one that has a probability."""
    wanted = torch.minimum(wanted, cumulative[:, -1:] * (1 - 2.0**-52))
    index = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    return index.clamp_max(cumulative.shape[-1] - 1)


def _of(values: Tensor | None, rows: Tensor) -> Tensor:
    assert values is not None  # given wherever rows are narrowed
    return values[rows]


def _penalised(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Logits of seen tokens divided by the penalty where they are positive, otherwise multiplied (arXiv 1909.05858,
    4.1; for negative logits as Hugging Face and vLLM do).
    """
    factor = penalty[:, None]
    return torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)


def _narrowed(probs: Tensor, draw: Draw, rows: Tensor) -> Tensor:
    """The smallest set of most likely tokens whose mass reaches `top_p`, of those at most `top_k`, and none under
    `min_p` times the probability of the most likely one.
    """
    uniform, top_p, top_k, min_p = draw.uniform[rows], _of(draw.top_p, rows), _of(draw.top_k, rows), draw.min_p
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
    order = torch.arange(probs.shape[-1], device=probs.device)
    limit = torch.where(top_k > 0, top_k, probs.shape[-1])
    keep = (before < top_p[:, None]) & (order < limit[:, None])
    if min_p is not None:
        keep &= ordered >= min_p[rows, None] * ordered[:, :1]
    keep[:, 0] = True
    rank = _invert(ordered * keep, uniform)
    return ids.gather(1, rank[:, None])[:, 0]
