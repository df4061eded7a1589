"""Batches of the two contracts, with the fields that a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ramet.types import AdvantageInputs, LossInputs, StopReason


@pytest.fixture
def advantage_batch() -> Callable[..., AdvantageInputs]:
    def build(
        rewards: list[float] | Tensor,
        group_ids: list[int],
        mask: Tensor | None = None,
        token_rewards: Tensor | None = None,
        values: Tensor | None = None,
        node_ids: Tensor | None = None,
    ) -> AdvantageInputs:
        n = len(group_ids)
        mask = torch.ones(n, 3, dtype=torch.bool) if mask is None else mask
        zeros = torch.zeros(mask.shape)
        return AdvantageInputs(
            rewards=torch.as_tensor(rewards, dtype=torch.float32),
            reward_parts={},
            mask=mask,
            group_ids=torch.tensor(group_ids),
            turn_ids=zeros.long(),
            thread_ids=zeros.long(),
            node_ids=torch.arange(zeros.numel()).view(zeros.shape) if node_ids is None else node_ids,
            parent=torch.full((n,), -1),
            fork_position=torch.zeros(n, dtype=torch.int64),
            stop=[StopReason.ANSWER] * n,
            n_tool_calls=torch.zeros(n, dtype=torch.int64),
            engine_logprobs=zeros,
            policy_versions=zeros.long(),
            token_rewards=token_rewards,
            values=values,
        )

    return build


@pytest.fixture
def loss_batch() -> Callable[..., LossInputs]:
    def build(
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor | None = None,
        sequences: list[int] | None = None,
        turns: list[int] | None = None,
    ) -> LossInputs:
        zeros = torch.zeros(len(advantages), dtype=torch.int64)
        return LossInputs(
            logprobs=logprobs,
            old_logprobs=old_logprobs,
            engine_logprobs=old_logprobs,
            advantages=advantages,
            mask=torch.ones_like(zeros, dtype=torch.bool) if mask is None else mask,
            sequence_ids=zeros if sequences is None else torch.tensor(sequences),
            rollout_ids=zeros if sequences is None else torch.tensor(sequences),
            group_ids=zeros,
            turn_ids=zeros if turns is None else torch.tensor(turns),
            policy_versions=zeros,
        )

    return build
