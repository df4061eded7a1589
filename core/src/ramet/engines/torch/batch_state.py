"""What the device knows of every slot: the token to feed, its position, how to sample, and what was sampled.

A lane's position is always the number of tokens whose keys and values are valid. So a lane that only pads a batch
writes behind its own sequence, where nobody looks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ramet.engines.protocol import Sampling
from ramet.engines.torch.sampler import Draw, uniforms


class BatchState:
    """Tensors of one row per slot."""

    def __init__(self, slots: int, length: int, device: torch.device) -> None:
        self.device = device
        self.token = torch.zeros(slots, dtype=torch.int64, device=device)
        self.position = torch.zeros(slots, dtype=torch.int64, device=device)
        self.slot = torch.arange(slots, device=device)
        self._temperature = torch.ones(slots, dtype=torch.float32, device=device)
        self._top_p = torch.ones(slots, dtype=torch.float32, device=device)
        self._top_k = torch.zeros(slots, dtype=torch.int64, device=device)
        self._uniform = torch.zeros(slots, length, dtype=torch.float64, device=device)
        self._logprobs = torch.zeros(slots, length, dtype=torch.float32, device=device)
        self._entropies = torch.zeros(slots, length, dtype=torch.float32, device=device)

    def start(self, slot: int, sampling: Sampling, seed: int, prompt: int, token: int) -> None:
        """Prepare a slot to sample behind a prompt of so many tokens, the last of which is fed first."""
        self.token[slot] = token
        self._temperature[slot] = sampling.temperature
        self._top_p[slot] = sampling.top_p
        self._top_k[slot] = sampling.top_k
        drawn = uniforms(seed, prompt, sampling.max_tokens)
        self._uniform[slot, prompt - 1 : prompt - 1 + sampling.max_tokens] = drawn.to(self.device)

    def draw(self, rows: slice | Tensor, position: Tensor, *, any_greedy: bool, narrow: Tensor | None) -> Draw:
        """How the rows sample behind the tokens at these positions."""
        return Draw(
            temperature=self._temperature[rows],
            uniform=self._uniform[self.slot[rows], position],
            any_greedy=any_greedy,
            narrow=narrow,
            top_p=self._top_p[rows],
            top_k=self._top_k[rows],
        )

    def advance(
        self, rows: slice | Tensor, active: Tensor, tokens: Tensor, logprobs: Tensor, entropies: Tensor
    ) -> None:
        """Record a decode step. `active` `[R]` is False for rows that only pad: their next token is not to change."""
        slots, position = self.slot[rows], self.position[rows]
        self._logprobs[slots, position] = logprobs
        self._entropies[slots, position] = entropies
        self.token[rows] = torch.where(active, tokens.clamp_min(0), self.token[rows])
        self.position[rows] = position + active

    def read(self, slot: int, start: int, count: int) -> tuple[list[float], list[float]]:
        """Log-probabilities and entropies of `count` tokens sampled from position `start` on."""
        behind = slice(start - 1, start - 1 + count)
        return self._logprobs[slot, behind].tolist(), self._entropies[slot, behind].tolist()
