"""The attention `varlen` gives its kernel the right borders; the kernel itself needs a GPU, so another computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ramet.models.varlen
from ramet.config.schema import Attention, Dtype, ModelConfig
from ramet.errors import ConfigError
from ramet.models.loading import load_model
from ramet.models.varlen import VARLEN, attend, borders, has_varlen, register

POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0]])


def one_by_one(query: Tensor, key: Tensor, value: Tensor, *about: Any, **options: Any) -> Tensor:
    """What torch documents of `varlen_attn` for causal windows: each sequence for itself."""
    starts, same, longest, _ = about
    assert torch.equal(starts, same) and starts.dtype == torch.int32 and options["window_size"] == (-1, 0)
    assert longest == int(starts.diff().max())
    out = []
    for a, b in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        parts = [x[a:b].transpose(0, 1)[None] for x in (query, key, value)]
        mixed = F.scaled_dot_product_attention(
            *parts, is_causal=True, scale=options["scale"], enable_gqa=options["enable_gqa"]
        )
        out.append(mixed[0].transpose(0, 1))
    return torch.cat(out)


def test_packed_and_padded_rows_come_out_as_with_sdpa(
    check_as_with_sdpa: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ramet.models.varlen, "_kernel", one_by_one)
    register()
    check_as_with_sdpa(VARLEN)


def test_borders_are_where_positions_begin_again() -> None:
    found = borders(POSITIONS)
    assert (found.starts.tolist(), found.longest) == ([0, 3, 8, 9], 5)
    assert borders(torch.arange(4)[None].expand(2, -1)).starts.tolist() == [0, 4, 8]


def test_without_cuda_it_is_refused(tiny: Path) -> None:
    config = ModelConfig(path=str(tiny), attention=Attention.VARLEN, dtype=Dtype.BFLOAT16, device="cpu")
    with pytest.raises(ConfigError, match="varlen needs a CUDA device"):
        load_model(config)


def test_a_kernel_of_torch_2_11_is_not_given_the_word_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda *_, **options: given.append(options))
    query, key = torch.zeros(9, 4, 8), torch.zeros(9, 2, 8)
    found = borders(POSITIONS)
    attend(query, key, key, found, found, 0.125)
    monkeypatch.setattr(ramet.models.varlen, "_OPTIONS", frozenset({"scale", "window_size"}))
    assert has_varlen()
    attend(query, key, key, found, found, 0.125)
    assert given == [
        {"scale": 0.125, "window_size": (-1, 0), "enable_gqa": True},
        {"scale": 0.125, "window_size": (-1, 0)},
    ]
    monkeypatch.setattr(ramet.models.varlen, "_OPTIONS", frozenset({"scale", "is_causal"}))  # older ones
    assert not has_varlen()


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and has_varlen()), reason="needs CUDA and torch's varlen attention")
def test_torchs_kernel_computes_what_the_replacement_does() -> None:
    torch.manual_seed(1)
    query, key, value = (torch.randn(9, n, 64, device="cuda", dtype=torch.bfloat16) for n in (4, 2, 2))
    found = borders(POSITIONS.cuda())
    about = (found.starts, found.starts, found.longest, found.longest)
    options = {"scale": 0.125, "window_size": (-1, 0), "enable_gqa": True}
    real = ramet.models.varlen._kernel(query, key, value, *about, **options)
    torch.testing.assert_close(real, one_by_one(query, key, value, *about, **options), rtol=2e-2, atol=2e-2)
