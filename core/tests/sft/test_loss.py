"""The loss in pieces is transformers' loss, with its gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ramet.models.tiny import make_tiny_model
from ramet.sft import loss
from ramet.sft.batches import IGNORED

MANY = 2**27  # tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), hidden=32, layers=2, heads=2, intermediate=64)


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 200, (3, 24), generator=generator)
    keep = torch.rand(3, 24, generator=generator) < 0.5
    keep[2] = False  # an example in which nothing is to be learned
    return {"input_ids": ids, "labels": ids.masked_fill(~keep, IGNORED)}


def loss_and_gradients(model: PreTrainedModel, **options: object) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    found = model(**batch(), **options).loss
    found.backward()
    return found.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("items", [None, 50])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_loss_and_gradients_are_those_of_transformers(
    folder: Path, items: int | None, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", 5 * 256)
    options = {} if items is None else {"num_items_in_batch": torch.tensor(items)}
    plain, ours = (AutoModelForCausalLM.from_pretrained(folder).train() for _ in range(2))
    loss.bound_loss(ours, MANY)
    if checkpointing:
        ours.gradient_checkpointing_enable({"use_reentrant": False})
    expected, wanted = loss_and_gradients(plain, **options)
    found, gradients = loss_and_gradients(ours, **options)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-7)


def test_a_batch_without_trained_tokens_costs_nothing_and_moves_nothing(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    loss.bound_loss(model, MANY)
    nothing = batch() | {"labels": torch.full((3, 24), IGNORED)}
    found = model(**nothing, num_items_in_batch=torch.tensor(7)).loss
    found.backward()
    assert found == 0 and not any(p.grad is not None and p.grad.any() for p in model.parameters())


def test_only_many_logits_come_in_pieces_and_only_where_the_head_is_last(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    loss.bound_loss(model, 16 * 4096)
    assert model(**batch()).logits.shape == (3, 24, model.config.vocab_size)
    config = AutoConfig.for_model(
        "cohere", vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    scaled = AutoModelForCausalLM.from_config(config)
    loss.bound_loss(scaled, MANY)
    assert scaled(input_ids=torch.tensor([[1, 2]])).logits.shape == (1, 2, 64)
    assert "holds the logits of all 134217728 tokens of a batch at once: model.path: CohereForCausalLM" in caplog.text
