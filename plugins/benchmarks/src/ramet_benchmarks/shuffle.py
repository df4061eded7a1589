"""A seeded order of 0..n-1 that needs no memory, so that also a space of billions can be split.

A Feistel network permutes the numbers below a power of four; what falls outside is walked on until it falls inside.
"""

from __future__ import annotations

from collections.abc import Iterator

_MASK = (1 << 64) - 1
_ROUNDS = 4


def shuffled(n: int, seed: int) -> Iterator[int]:
    """Every number of 0..n-1 exactly once, in an order that only n and the seed decide."""
    half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = [mix(seed, round) for round in range(_ROUNDS)]
    for number in range(n):
        index = _permute(number, half_bits, keys)
        while index >= n:
            index = _permute(index, half_bits, keys)
        yield index


def mix(*numbers: int) -> int:
    """64 well-mixed bits of some integers (the finaliser of SplitMix64, applied in turn)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def _permute(number: int, half_bits: int, keys: list[int]) -> int:
    mask = (1 << half_bits) - 1
    left, right = number >> half_bits, number & mask
    for key in keys:
        left, right = right, left ^ (mix(key, right) & mask)
    return left << half_bits | right
