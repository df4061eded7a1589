"""The cache takes memory for the slots and lengths that are used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from ramet.engines.torch.cache import KVCache
from ramet.errors import ConfigError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are given by need on Linux only")
KIB, MIB = 2**10, 2**20


def resident() -> int:
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * KIB


def small_use(cache: KVCache) -> None:
    """300 tokens in each of 3 slots, and one look at everything."""
    positions = torch.arange(300).expand(3, -1)
    numbers = torch.ones(3, 300, 4, 64)
    addresses = cache.addresses(torch.tensor([0, 1, 5]), positions)
    for layer in range(2):
        cache.write(layer, addresses, numbers, numbers)
        assert all(seen.sum() == numbers.numel() for seen in cache.read(layer, slice(0, 64), cache.length))


def test_a_cache_takes_memory_only_where_it_was_written_and_gives_it_back() -> None:
    options = {"layers": 2, "slots": 64, "kv_heads": 4, "max_tokens": 2000, "head_dim": 64}
    small_use(KVCache(**{**options, "max_tokens": 320}, dtype=torch.float32, device=torch.device("cpu")))
    before = resident()
    cache = KVCache(**options, dtype=torch.float32, device=torch.device("cpu"))
    small_use(cache)
    assert cache.keys.nbytes + cache.values.nbytes > 480 * MIB
    used = resident() - before
    assert 3 * MIB < used < 32 * MIB  # 3 slots * 300 tokens * 4 KiB, and the kernels' own
    cache.zero()
    assert resident() - before < used - 3 * MIB
    assert not cache.keys[0, :6].any()


def test_a_cache_that_the_system_does_not_give_is_named_with_its_keys() -> None:
    with pytest.raises(
        ConfigError, match=r"engine.params: keys and values of 1000000 slots of .* lower engine.params.slots"
    ):
        KVCache(
            layers=30,
            slots=1_000_000,
            kv_heads=3,
            max_tokens=1_000_000,
            head_dim=64,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
