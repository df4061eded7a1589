from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ramet.algorithms.advantages import whitening
from ramet.algorithms.advantages.config import GaeConfig
from ramet.algorithms.advantages.gae import Gae
from ramet.algorithms.advantages.steps import BLOCK, discounted_sums
from ramet.algorithms.aggregation import aggregate
from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.algorithms.value_loss import value_loss
from ramet.config.compose import compose
from ramet.plugins import load_plugins
from ramet.types import AdvantageInputs, CriticOptions, LossInputs, Need
from ramet.types.option import option_problems

Batch = Callable[..., AdvantageInputs]
LossBatch = Callable[..., LossInputs]
DISCOUNTS = [1.0, 0.99, 0.95, 0.0]


def by_loop(batch: AdvantageInputs, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns `[N, T]`, row by row and token by token, in Python's own numbers."""
    assert batch.values is not None
    advantages, returns = torch.zeros(batch.mask.shape), torch.zeros(batch.mask.shape)
    for row, mask in enumerate(batch.mask.tolist()):
        sampled = [t for t, own in enumerate(mask) if own]
        reward = {t: 0.0 for t in sampled}
        if sampled:
            reward[sampled[-1]] += batch.rewards[row].item()
        for t in range(sampled[0] if sampled else len(mask), len(mask)):
            if batch.token_rewards is not None:
                reward[max(s for s in sampled if s <= t)] += batch.token_rewards[row, t].item()
        next_value = advantage = 0.0
        for t in reversed(sampled):
            value = batch.values[row, t].item()
            advantage = reward[t] + gamma * next_value - value + gamma * lam * advantage
            advantages[row, t], returns[row, t], next_value = advantage, advantage + value, value
    return advantages, returns


@pytest.fixture
def random_batch(advantage_batch: Batch) -> Callable[..., AdvantageInputs]:
    def build(n: int, length: int, *, seed: int, sampled: float, token_rewards: bool = False) -> AdvantageInputs:
        generator = torch.Generator().manual_seed(seed)
        mask = torch.rand(n, length, generator=generator) < sampled
        mask &= torch.arange(length) < torch.randint(1, length + 1, (n, 1), generator=generator)
        values, extra = torch.randn(2, n, length, generator=generator)
        rewards = torch.randn(n, generator=generator)
        return advantage_batch(rewards, list(range(n)), mask, extra if token_rewards else None, values)

    return build


@pytest.mark.parametrize("gamma", DISCOUNTS)
@pytest.mark.parametrize("lam", DISCOUNTS)
def test_it_is_the_plain_loop_on_any_mask(random_batch: Callable[..., AdvantageInputs], gamma: float, lam: float):
    estimator = Gae(GaeConfig(gamma=gamma, lam=lam, whiten=False))
    for seed, (sampled, length) in enumerate([(1.0, 1), (0.3, 50), (0.9, 3 * BLOCK + 5), (0.0, 4)]):
        batch = random_batch(4, length, seed=seed, sampled=sampled, token_rewards=seed % 2 == 0)
        output, (advantages, returns) = estimator(batch), by_loop(batch, gamma, lam)
        torch.testing.assert_close(output.advantages, advantages, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(output.returns, returns, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("discount", [*DISCOUNTS, 0.5, 1e-9])
def test_the_scan_is_the_plain_loop_at_any_length(discount: float) -> None:
    for length in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK**2, BLOCK**2 + 1, 20_000):
        values = torch.randn(2, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
        expected, last = torch.zeros_like(values), torch.zeros(2, dtype=torch.float64)
        for t in reversed(range(length)):
            last = values[:, t] + discount * last
            expected[:, t] = last
        torch.testing.assert_close(discounted_sums(values, discount), expected, rtol=1e-11, atol=1e-11)


def test_the_returns_of_a_long_rollout_without_discount_are_exactly_its_reward(advantage_batch: Batch) -> None:
    values = torch.randn(2, 10_000, generator=torch.Generator().manual_seed(0))
    rewards = torch.tensor([0.1, -3.0])
    batch = advantage_batch(rewards, [0, 0], torch.ones(2, 10_000, dtype=torch.bool), None, values)
    returns = Gae(GaeConfig())(batch).returns
    assert returns is not None and torch.equal(returns, rewards[:, None].expand(2, 10_000))


def test_a_tool_result_takes_no_time_and_gives_its_reward_to_the_call(advantage_batch: Batch) -> None:
    """Two rollouts with the same sampled tokens; the second one has a tool result of two tokens in between."""
    plain, tools = torch.tensor([1, 1, 1, 0, 0]).bool(), torch.tensor([1, 1, 0, 0, 1]).bool()
    values = torch.tensor([[0.5, 1.0, 2.0, 9.0, 9.0], [0.5, 1.0, 9.0, 9.0, 2.0]])
    extra = torch.tensor([[0.0, 0.25, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.25, 0.0]])
    batch = advantage_batch([4.0, 4.0], [0, 0], torch.stack([plain, tools]), extra, values)
    output = Gae(GaeConfig(gamma=0.5, lam=0.5, whiten=False))(batch)
    expected = torch.tensor([0.1875, 0.75, 2.0])
    torch.testing.assert_close(output.advantages[0, plain], expected)
    torch.testing.assert_close(output.advantages[1, tools], expected)


def test_a_reward_before_the_first_sampled_token_counts_for_no_action(advantage_batch: Batch) -> None:
    mask, extra = torch.tensor([[False, True, True]]), torch.tensor([[7.0, 0.0, 0.0]])
    batch = advantage_batch([1.0], [0], mask, extra, torch.zeros(1, 3))
    assert Gae(GaeConfig(whiten=False))(batch).advantages.tolist() == [[0.0, 1.0, 1.0]]


def test_how_many_rows_are_computed_at_once_changes_nothing(
    random_batch: Callable[..., AdvantageInputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = random_batch(7, 90, seed=3, sampled=0.7, token_rewards=True)
    expected = Gae(GaeConfig(gamma=0.9))(batch)
    monkeypatch.setattr(whitening, "CACHED", 200)
    found = Gae(GaeConfig(gamma=0.9))(batch)
    assert found.returns is not None and expected.returns is not None
    assert torch.equal(found.advantages, expected.advantages) and torch.equal(found.returns, expected.returns)


def test_whitened_advantages_have_mean_0_and_deviation_1_over_sampled_tokens(
    random_batch: Callable[..., AdvantageInputs],
) -> None:
    batch = random_batch(5, 80, seed=1, sampled=0.6)
    output, plain = Gae(GaeConfig())(batch), Gae(GaeConfig(whiten=False))(batch)
    chosen = output.advantages[batch.mask]
    assert chosen.mean().item() == pytest.approx(0.0, abs=1e-6) and chosen.std().item() == pytest.approx(1.0, abs=1e-5)
    assert output.returns is not None and plain.returns is not None
    assert torch.equal(output.returns, plain.returns)


@pytest.mark.parametrize("mask", [[[True]], [[False]], [[True, True]]])
def test_too_few_or_equal_advantages_are_whitened_to_zero(advantage_batch: Batch, mask: list[list[bool]]) -> None:
    chosen = torch.tensor(mask)
    output = Gae(GaeConfig())(advantage_batch([2.0], [0], chosen, None, torch.zeros(chosen.shape)))
    assert not output.advantages.count_nonzero()


def test_an_empty_batch_gives_an_empty_result(advantage_batch: Batch) -> None:
    nothing = torch.zeros(0, 0)
    assert Gae(GaeConfig())(advantage_batch([], [], nothing.bool(), None, nothing)).advantages.shape == (0, 0)


def test_the_registered_estimator_needs_a_critic_and_tells_how_to_train_it() -> None:
    entry = load_plugins().get("advantages", "gae")
    estimator = entry.build(GaeConfig(critic_lr=2e-5, critic_warmup_steps=7, value_clip=0.2))
    assert estimator.needs == {Need.VALUES}
    assert estimator.critic == CriticOptions(lr=2e-5, warmup_steps=7, value_clip=0.2)
    assert entry.build(GaeConfig()).critic == CriticOptions()


def test_the_preset_ppo_takes_it_with_the_clipped_loss() -> None:
    config = compose(["algorithm=ppo", "model.path=m", "advantage.params.critic_lr=2e-5"], job="train").config
    assert (config.advantage.name, config.policy_loss.name, config.branch_policy.name) == ("gae", "ppo_clip", "none")
    assert config.advantage.params == GaeConfig(critic_lr=2e-5)


@pytest.mark.parametrize(
    ("option", "value"),
    [("gamma", 1.1), ("lam", -0.1), ("critic_lr", -1.0), ("critic_warmup_steps", -1), ("value_clip", 0)],
)
def test_options_out_of_range_are_refused(option: str, value: float) -> None:
    [problem] = option_problems(GaeConfig(**{option: value}))
    assert problem.startswith(f"{option} must be ")


def test_ppo_by_hand_on_two_tokens(advantage_batch: Batch, loss_batch: LossBatch) -> None:
    """One rollout of two tokens, values 0.5 and 1, reward 2, gamma 0.9, lambda 0.5.

    delta_2 = 2 - 1 = 1, delta_1 = 0.9 * 1 - 0.5 = 0.4; A_2 = 1, A_1 = 0.4 + 0.45 * 1 = 0.85; R = (1.35, 2).
    Ratios 1.5 and 0.5 at a clip of 0.2: -min(1.5 * 0.85, 1.2 * 0.85) = -1.02 and -0.5. New values 0.6 and 1.8 at a clip
    of 0.5: (0.6 - 1.35)^2 = 0.5625 and max((1.8 - 2)^2, (1.5 - 2)^2) = 0.25.
    """
    values = torch.tensor([[0.5, 1.0]])
    mask = torch.tensor([[True, True]])
    batch = advantage_batch([2.0], [0], mask, None, values)
    output = Gae(GaeConfig(gamma=0.9, lam=0.5, whiten=False))(batch)
    assert output.returns is not None
    torch.testing.assert_close(output.advantages, torch.tensor([[0.85, 1.0]]))
    torch.testing.assert_close(output.returns, torch.tensor([[1.35, 2.0]]))
    logprobs = torch.tensor([1.5, 0.5]).log().requires_grad_()
    policy = PpoClip(PpoClipConfig())(loss_batch(logprobs, torch.zeros(2), output.advantages[0]))
    torch.testing.assert_close(policy.per_token.detach(), torch.tensor([-1.02, -0.5]))
    aggregate(policy.per_token, torch.full((2,), 0.5)).backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([0.0, -0.25]))  # the first token is clipped
    new = torch.tensor([0.6, 1.8], requires_grad=True)
    critic = value_loss(new, values[0], output.returns[0], 0.5)
    torch.testing.assert_close(critic.per_token.detach(), torch.tensor([0.5625, 0.25]))
    aggregate(critic.per_token, torch.full((2,), 0.5)).backward()
    torch.testing.assert_close(new.grad, torch.tensor([-0.75, 0.0]))  # the second value is clipped
