"""The attention `flex`: its rule of what is seen, and torch's own reference of FlexAttention with it.

torch has gradients for CUDA alone and refuses them on a CPU; its reference computes them nevertheless, so some tests
take that check away.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from ramet.models.attention import COMPILER_OFF
from ramet.models.flex import BLOCK, FLEX, block_mask, ends_of_sequences, register

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0]])
BLOCKS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices")


@pytest.fixture
def gradients_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)


def test_a_sequence_ends_where_positions_begin_again() -> None:
    assert ends_of_sequences(POSITIONS).tolist() == [3, 3, 3, 8, 8, 8, 8, 8, 9]
    rows = torch.arange(4).expand(2, -1)
    assert ends_of_sequences(rows).tolist() == [4] * 4 + [8] * 4
    assert ends_of_sequences(rows).dtype is torch.int32


def nested(length: int, seed: int) -> Tensor:
    """Ends of the descendants of every position of a trie whose forks are at random places."""
    rng = np.random.default_rng(seed)
    ends = np.zeros(length, np.int64)
    position, path = 0, list[int]()
    while position < length:
        run = range(position, min(position + int(rng.integers(1, 200)), length))
        path += run
        ends[path] = run[-1] + 1
        position = run[-1] + 1
        path = path[: int(rng.integers(0, len(path) + 1))]
    return torch.from_numpy(ends).int()


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 1000])
def test_blocks_are_those_that_torch_finds_by_asking_for_every_pair(length: int) -> None:
    ends = nested(length, seed=length)
    found = block_mask(ends)
    expected = create_block_mask(found.mask_mod, 1, 1, length, length, device="cpu")
    assert found.shape == expected.shape == (1, 1, length, length)
    for name in BLOCKS:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_a_mask_for_16k_tokens_is_small() -> None:
    ends = nested(16384, seed=1)
    mask = block_mask(ends)
    tensors = [getattr(mask, name) for name in BLOCKS]
    assert sum(tensor.nbytes for tensor in tensors) < 1e6


def test_lengths_share_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """And calls from code that is not to be compiled are compiled nevertheless."""
    monkeypatch.delenv(COMPILER_OFF, raising=False)  # a test of vLLM's may have set it in this process
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(flex_attention, dynamic=True, backend=counter)

    @torch.compiler.disable
    def called(length: int, mask: BlockMask) -> Tensor:
        query, key, value = (torch.randn(1, heads, length, 8) for heads in (4, 2, 2))
        found: Tensor = compiled(query, key, value, block_mask=mask, scale=0.3, enable_gqa=True)
        return found

    with torch.no_grad():
        for length in (100, 300, 400, 640, 1000):
            called(length, block_mask(nested(length, seed=1)))
    assert 1 <= counter.frame_count <= 2  # one block is a case of its own


@pytest.mark.usefixtures("gradients_on_cpu")
def test_packed_and_padded_rows_come_out_as_with_sdpa(check_as_with_sdpa: Callable[[str], None]) -> None:
    register()
    check_as_with_sdpa(FLEX)
