"""`train.kl_estimator=k1-reward`: an estimator makes of it the KL's gradient, and no more than its coefficient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ramet.algorithms.advantages import config as options
from ramet.algorithms.advantages.gae import Gae
from ramet.algorithms.advantages.gigpo import Gigpo
from ramet.algorithms.advantages.grpo import Grpo
from ramet.algorithms.advantages.grpo_passk import GrpoPassk
from ramet.algorithms.advantages.opo import Opo
from ramet.algorithms.advantages.reinforce_pp import ReinforcePp, ReinforcePpBaseline
from ramet.algorithms.advantages.remax import Remax
from ramet.algorithms.advantages.rloo import Rloo
from ramet.algorithms.advantages.tree_grpo import TreeGrpo
from ramet.algorithms.advantages.treerl import TreeRl
from ramet.policy.advantages import estimate
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch, padded
from ramet.testing.batches import root_row

WORDS, COEF = 5, 0.01
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "grpo": lambda: Grpo(options.GrpoConfig()),
    "grpo_passk": lambda: GrpoPassk(options.GrpoPasskConfig()),
    "rloo": Rloo,
    "opo": Opo,
    "remax": Remax,
    "reinforce_pp_baseline": ReinforcePpBaseline,
    "gigpo": lambda: Gigpo(options.GigpoConfig()),
    "tree_grpo": lambda: TreeGrpo(options.TreeGrpoConfig()),
    "treerl": TreeRl,
    "reinforce_pp": lambda: ReinforcePp(options.ReinforcePpConfig()),
    "gae": lambda: Gae(options.GaeConfig()),
    "gae, not whitened": lambda: Gae(options.GaeConfig(whiten=False)),
}
WHITENED = {"reinforce_pp", "gae"}  # by one scale for the whole step, rewards and KL alike


class Policy:
    """Two words, the second of which depends on the first: `[WORDS]` and `[WORDS, WORDS]` logits."""

    def __init__(self, seed: int, scale: float) -> None:
        draw = torch.Generator().manual_seed(seed)
        shapes = ((WORDS,), (WORDS, WORDS))
        self.logits = [(scale * torch.randn(s, generator=draw)).double().requires_grad_() for s in shapes]

    def logprobs(self) -> Tensor:
        """`[WORDS ** 2, 2]`: of both words of every text."""
        first, second = (values.log_softmax(-1) for values in self.logits)
        return torch.stack([first[:, None].expand(WORDS, WORDS), second], -1).flatten(0, 1)

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, self.logits)])


def all_texts() -> list[Row]:
    """Every text once, in groups of five; all rewards are 1."""
    texts = list(product(range(WORDS), repeat=2))
    rows = [root_row(np.zeros(1, np.int32), np.array(text, np.int32)) for text in texts]
    nodes = [np.array([2 * i, 2 * i + 1], np.int32) for i in range(len(rows))]
    return [replace(row, reward=1.0, group=i // 5, node_ids=nodes[i]) for i, row in enumerate(rows)]


def advantages_of(name: str, rows: list[Row], logprobs: Tensor, reference: Tensor, coef: float) -> Tensor:
    step = TrainBatch(
        rows=rows,
        old_logprobs=list(logprobs.numpy()),
        ref_logprobs=list(reference.numpy()),
        values=[np.zeros(2, np.float32) for _ in rows],
        kl_coef=coef,
    )
    batch, _ = estimate(ESTIMATORS[name](), step, greedy_rewards=[1.0] * len(rows), kl_in_reward=True)
    return padded(batch.advantages, torch.float32, 0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_advantages_of_equal_rewards_follow_the_gradient_of_the_kl(name: str) -> None:
    """In expectation over all texts, which is exact here."""
    policy, reference = Policy(1, 0.5), Policy(2, 0.5).logprobs().detach()
    logprobs = policy.logprobs()
    probability = logprobs.sum(1).exp()
    exact = policy.gradient((probability * (logprobs - reference).sum(1)).sum())

    logprobs = policy.logprobs()
    advantages = advantages_of(name, all_texts(), logprobs.detach().float(), reference.float(), COEF)
    found = policy.gradient(-(probability.detach()[:, None] * advantages * logprobs).sum())
    cosine = float(found @ exact / (found.norm() * exact.norm()))
    assert cosine > 0.99
    if name not in WHITENED:
        assert float(found @ exact / (exact @ exact)) == pytest.approx(COEF, rel=0.01)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if not name.startswith("gae") and name != "reinforce_pp"])
def test_a_small_kl_never_becomes_a_large_advantage(name: str) -> None:
    """Groups that are solved, with log-probabilities 0.02 nats around the reference."""
    rows, coef = all_texts(), 1e-4
    reference = torch.full((len(rows), 2), -2.0)
    logprobs = reference + 0.02 * torch.randn(reference.shape, generator=torch.Generator().manual_seed(0))
    found = advantages_of(name, rows, logprobs, reference, coef)
    to_go = -coef * (logprobs - reference).flip(1).cumsum(1).flip(1)
    assert torch.allclose(found, to_go, atol=1e-9) and found.all()
