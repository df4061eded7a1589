"""A tiny model folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from ramet.models.tiny import make_tiny_model


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path, hidden=32, layers=2, heads=2, intermediate=64)


def logits_and_gradient(folder: Path, attention: str, ids: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention)
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    logits.log_softmax(-1)[..., 7].sum().backward()
    return logits.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.fixture(params=["packed", "rows", "none"])
def check_as_with_sdpa(tiny: Path, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compare an attention with SDPA. Without positions a model counts once for all rows, as in fine-tuning."""
    rows = {"packed": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0]]), "rows": torch.arange(9).expand(2, -1)}
    positions = rows.get(request.param)
    n_rows = 2 if positions is None else len(positions)
    ids = torch.arange(9 * n_rows).view(n_rows, 9) % 200

    def check(attention: str) -> None:
        found, expected = (logits_and_gradient(tiny, name, ids, positions) for name in (attention, "sdpa"))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

    return check


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "model") -> Path:
        return make_tiny_model(tmp_path / name, hidden=16, layers=1, heads=2, intermediate=16)

    return make
