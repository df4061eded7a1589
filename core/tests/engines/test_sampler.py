"""Sampling: a counter decides the uniform number, and the number the token."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ramet.engines.torch.sampler import Draw, sample, uniforms


def draw(rows: int, uniform: torch.Tensor, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> Draw:
    narrow = torch.arange(rows) if top_p < 1 or top_k else None
    return Draw(
        temperature=torch.full((rows,), temperature),
        uniform=uniform.double(),
        any_greedy=temperature == 0,
        narrow=narrow,
        top_p=torch.full((rows,), top_p),
        top_k=torch.full((rows,), top_k),
    )


def test_a_uniform_number_depends_on_seed_and_position_alone() -> None:
    assert torch.equal(uniforms(7, 10, 5), uniforms(7, 0, 15)[10:])
    assert not torch.equal(uniforms(7, 0, 5), uniforms(8, 0, 5))
    assert torch.equal(uniforms(-1, 0, 3), uniforms((1 << 64) - 1, 0, 3))


def test_neighbouring_seeds_do_not_share_numbers() -> None:
    seen = torch.cat([uniforms(seed, 0, 50) for seed in range(50)])
    assert len(seen.unique()) == 2500
    assert abs(seen.mean().item() - 0.5) < 0.02
    assert 0 <= seen.min().item() and seen.max().item() < 1


def test_tokens_log_probabilities_and_entropies_of_a_case_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]])).repeat(4, 1)
    tokens, logprobs, entropies = sample(logits, draw(4, torch.tensor([0.0, 0.49, 0.5, 0.99])))
    assert tokens.tolist() == [0, 0, 1, 2]
    assert torch.allclose(logprobs.exp(), torch.tensor([0.5, 0.5, 0.25, 0.25]))
    assert torch.allclose(entropies, torch.full((4,), 1.5 * math.log(2)))


def test_numbers_are_those_at_the_temperature() -> None:
    logits = torch.tensor([[math.log(4.0), 0.0]])
    _, logprobs, entropies = sample(logits, draw(1, torch.tensor([0.0]), temperature=2.0))
    assert math.isclose(logprobs.exp().item(), 2 / 3, rel_tol=1e-6)
    assert math.isclose(entropies.item(), math.log(3) - 2 / 3 * math.log(2), rel_tol=1e-6)


def test_sampled_frequencies_follow_the_distribution() -> None:
    probs = torch.tensor([0.05, 0.4, 0.0, 0.3, 0.25])
    tokens, _, _ = sample(probs.log().clamp_min(-200).repeat(20000, 1), draw(20000, uniforms(1, 0, 20000)))
    found = torch.bincount(tokens, minlength=5) / 20000
    assert (found - probs).abs().max() < 0.015
    assert found[2] == 0


def test_top_p_keeps_the_fewest_tokens_that_reach_the_mass() -> None:
    logits = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.3])).repeat(1000, 1)
    tokens, logprobs, _ = sample(logits, draw(1000, uniforms(2, 0, 1000), top_p=0.65))
    assert set(tokens.tolist()) == {1, 3}
    assert torch.allclose(logprobs.exp(), torch.where(tokens == 1, 0.4, 0.3))
    assert abs((tokens == 1).float().mean().item() - 4 / 7) < 0.05


def test_top_k_keeps_the_most_likely_tokens() -> None:
    logits = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.3])).repeat(1000, 1)
    tokens, _, _ = sample(logits, draw(1000, uniforms(2, 0, 1000), top_k=3))
    assert set(tokens.tolist()) == {1, 2, 3}


def test_a_row_that_is_not_finite_gets_no_token() -> None:
    logits = torch.tensor([[0.0, 1.0], [math.nan, 0.0], [math.inf, 0.0], [0.0, 2.0]])
    tokens, _, _ = sample(logits, draw(4, torch.full((4,), 0.9)))
    assert tokens.tolist() == [1, -1, -1, 1]


def test_min_p_leaves_out_what_is_far_less_likely_than_the_best() -> None:
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]])).repeat(3, 1)
    narrow = replace(draw(3, torch.tensor([0.0, 0.65, 0.99])), narrow=torch.arange(3), min_p=torch.full((3,), 0.25))
    assert sample(logits, narrow)[0].tolist() == [0, 0, 1]  # 0.1 is under 0.25 x 0.6; 0.6 and 0.3 are left


def test_a_repetition_penalty_divides_positive_logits_of_seen_tokens_and_multiplies_negative_ones() -> None:
    logits = torch.tensor([[2.0, 1.5, -1.0]]).repeat(2, 1)
    seen = torch.tensor([[True, False, True], [False, False, False]])
    penalty = torch.tensor([2.0, 1.0])
    for temperature in (0.0, 1.0):
        drawn = draw(2, torch.tensor([0.0, 0.0]), temperature=temperature)
        chosen = replace(drawn, narrow=torch.arange(2), min_p=torch.zeros(2), penalty=penalty, seen=seen)
        tokens, logprobs, _ = sample(logits, chosen)
        assert tokens.tolist() == [1, 0]  # 2 / 2 = 1 is less than 1.5
        expected = torch.log_softmax(logits, dim=-1)  # numbers stay those of the policy
        assert torch.allclose(logprobs, torch.stack([expected[0, 1], expected[1, 0]]))


def test_a_large_vocabulary_gives_the_tokens_that_all_running_sums_give() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(200, 49_152, generator=generator)
    logits[:, 300:900] = logits[:, -700:] = -200.0  # without a probability
    uniform = torch.rand(200, dtype=torch.float64, generator=generator)
    uniform[:4] = torch.tensor([0.0, 0.5, 1 - 2.0**-52, 1.0])
    cumulative = torch.log_softmax(logits, dim=-1).exp().cumsum(dim=-1, dtype=torch.float64)
    wanted = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]
    wanted[2:4] = 48_451  # the last one with a probability
    tokens, logprobs, _ = sample(logits, draw(200, uniform))
    assert torch.equal(tokens, wanted) and logprobs.min() > -30
    logits[7, 5] = math.nan
    assert sample(logits, draw(200, uniform))[0].lt(0).nonzero().tolist() == [[7]]
