from __future__ import annotations

from typing import cast

import pytest
import torch

from ramet.algorithms.logprobs import Entropy, logprobs_from_hidden, logprobs_from_logits, n_pieces


def test_log_probabilities_and_entropies_are_those_at_the_temperature() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, -1.0]])
    logprobs, entropies = logprobs_from_logits(logits, torch.tensor([1, 0]), 0.5, Entropy.DETACHED)
    exact = torch.distributions.Categorical(logits=logits / 0.5)
    torch.testing.assert_close(logprobs, exact.log_prob(torch.tensor([1, 0])))
    torch.testing.assert_close(entropies, exact.entropy())
    assert logprobs[0].item() == pytest.approx(-torch.tensor(3.0).log().item())


def test_temperature_zero_gives_the_probabilities_at_temperature_one() -> None:
    logits, targets = torch.randn(4, 7), torch.tensor([0, 1, 2, 3])
    assert torch.equal(logprobs_from_logits(logits, targets, 0)[0], logprobs_from_logits(logits, targets, 1.0)[0])


def test_half_precision_logits_are_worked_on_in_float32() -> None:
    logits = torch.randn(4, 50).bfloat16()
    found, entropies = logprobs_from_logits(logits, torch.arange(4), 1.0, Entropy.DETACHED)
    assert found.dtype is entropies.dtype is torch.float32
    torch.testing.assert_close(found, logits.float().log_softmax(-1).diagonal())


def test_entropies_are_finite_where_probabilities_underflow() -> None:
    logits = torch.tensor([[0.0, -500.0, -1000.0]]).requires_grad_()
    _, entropies = logprobs_from_logits(logits, torch.tensor([0]), 1.0, Entropy.GRADIENT)
    entropies.sum().backward()
    assert entropies.item() == 0.0
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_only_a_wanted_gradient_flows_through_entropies() -> None:
    logits = torch.randn(2, 5).requires_grad_()
    for entropy, flows in ((Entropy.GRADIENT, True), (Entropy.DETACHED, False), (Entropy.NONE, False)):
        _, entropies = logprobs_from_logits(logits, torch.tensor([0, 1]), 1.0, entropy)
        assert entropies.requires_grad is flows
        assert len(entropies) == (0 if entropy is Entropy.NONE else 2)


@pytest.mark.parametrize(("rows", "least"), [(1, 1), (3, 1), (3, 6), (10, 1), (10, 3), (100, 1), (100, 2)])
def test_pieces_give_the_values_and_gradients_of_the_whole(rows: int, least: int) -> None:
    torch.manual_seed(0)
    head, hidden, targets = torch.nn.Linear(8, 20), torch.randn(10, 8), torch.randint(20, (10,))

    calls: list[int] = []

    def counted(states: torch.Tensor) -> torch.Tensor:
        calls.append(len(states))
        return cast("torch.Tensor", head(states))

    def run(chunk: int, least: int = 1) -> list[torch.Tensor]:
        states = hidden.clone().requires_grad_()
        head.zero_grad()
        logprobs, entropies = logprobs_from_hidden(
            states,
            counted,
            targets,
            0.7,
            vocab_size=20,
            entropy=Entropy.GRADIENT,
            chunk_elements=chunk,
            min_pieces=least,
        )
        forward.append(len(calls))
        (logprobs.sum() + 0.3 * entropies.square().sum()).backward()
        assert states.grad is not None and head.weight.grad is not None
        return [logprobs.detach(), entropies.detach(), states.grad, head.weight.grad.clone()]

    forward: list[int] = []
    pieces = run(20 * rows, least)
    assert forward == [max(least, n_pieces(10, 20, 20 * rows))] and len(calls) == forward[0] * (1 + (forward[0] > 1))
    for found, expected in zip(pieces, run(10**9), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
