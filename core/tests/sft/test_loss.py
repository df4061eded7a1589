"""The loss of packed micro-batches in pieces is transformers' loss of single sequences, with its gradients."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ramet.models.tiny import make_tiny_model
from ramet.policy.batching.packing import Cost, MicroBatch, PackedLayout, empty_micro_batch, micro_batch
from ramet.sft import loss
from ramet.sft.batches import ExampleRow, StepPacker
from ramet.sft.encode import Example
from ramet.sft.world import World

MANY = 2**27  # tokens
COST = Cost(token=600.0, pair=1.0, best_tokens=2048)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), hidden=32, layers=2, heads=2, intermediate=64)


def example(seed: int) -> Example:
    rng = random.Random(seed)
    ids = [rng.randrange(200) for _ in range(rng.randrange(4, 24))]
    return Example(token_ids=array("i", ids), trained=array("b", [0, *(rng.randrange(2) for _ in ids[2:]), 1]))


EXAMPLES = [example(seed) for seed in range(9)]


def alone(model: PreTrainedModel) -> tuple[Tensor, list[Tensor]]:
    """transformers' own loss of one sequence at a time, and its gradients."""
    model.zero_grad()
    total = torch.zeros(())
    for one in EXAMPLES:
        ids, trained = torch.tensor([list(one.token_ids)]), torch.tensor([list(one.trained)]).bool()
        labels = ids.masked_fill(~trained, -100)
        found = model(input_ids=ids, labels=labels, num_items_in_batch=torch.tensor(1)).loss
        found.backward()
        total += found.detach()
    return total, gradients(model)


def in_passes(model: PreTrainedModel, batches: list[MicroBatch]) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    total = torch.zeros(())
    for batch in batches:
        found = model(**loss.inputs_of(batch)).loss
        found.backward()
        total += found.detach()
    return total, gradients(model)


def gradients(model: PreTrainedModel) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("layout", [*PackedLayout, None])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_loss_and_gradients_are_those_of_transformers(
    folder: Path, layout: PackedLayout | None, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one pass, or as they are packed with a small budget."""
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", 5 * 256)
    plain, ours = (AutoModelForCausalLM.from_pretrained(folder).train() for _ in range(2))
    loss.give_loss(ours, MANY)
    if checkpointing:
        ours.gradient_checkpointing_enable({"use_reentrant": False})
    rows = [ExampleRow.of(one) for one in EXAMPLES]
    packer = StepPacker(budget=40, world=World(), cost=COST, row_cost=COST)
    whole = None if layout is None else [micro_batch(rows, range(len(rows)), layout)]
    batches = list(packer(EXAMPLES).micro_batches) if whole is None else whole
    assert len(batches) == (1 if whole else len(batches)) and (whole or len(batches) > 2)
    expected, wanted = alone(plain)
    found, ours_gradients = in_passes(ours, batches)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours_gradients, wanted, rtol=1e-4, atol=1e-5)


def test_a_pass_without_trained_tokens_costs_nothing_and_moves_nothing(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    loss.give_loss(model, MANY)
    found, moved = in_passes(model, [empty_micro_batch()])
    assert found == 0 and moved and not any(gradient.any() for gradient in moved)


def test_a_model_whose_head_is_not_last_computes_all_logits_and_says_so_where_they_are_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = AutoConfig.for_model(
        "cohere", vocab_size=256, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    plain = AutoModelForCausalLM.from_config(config)
    scaled = AutoModelForCausalLM.from_config(config)
    scaled.load_state_dict(plain.state_dict())
    loss.give_loss(scaled, 1024)
    assert "the loss" not in caplog.text
    rows = [ExampleRow.of(one) for one in EXAMPLES]
    found, ours = in_passes(scaled, [micro_batch(rows, range(len(rows)), PackedLayout.PACKED)])
    expected, wanted = alone(plain)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)
    loss.give_loss(AutoModelForCausalLM.from_config(config), MANY)
    (said,) = [message for message in caplog.messages if message.startswith("the loss")]
    assert said.startswith(
        "the loss keeps the logits of all 134217728 tokens of a micro-batch at once: model.path: Cohere"
    )
