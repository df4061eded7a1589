"""The advantage `aepo_softmax`, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ramet import AdvantageInputs, ConfigError, StopReason
from ramet.types.option import option_problems
from ramet_release.aepo_softmax import AepoSoftmax
from ramet_release.config import AepoSoftmaxConfig


def inputs(entropies: torch.Tensor | None) -> AdvantageInputs:
    """Two rollouts of a group, with rewards 1 and 0; the second trains one token."""
    zeros = torch.zeros(2, 3)
    return AdvantageInputs(
        rewards=torch.tensor([1.0, 0.0]),
        reward_parts={},
        mask=torch.tensor([[True, True, False], [False, True, False]]),
        group_ids=torch.zeros(2, dtype=torch.int64),
        turn_ids=zeros.long(),
        thread_ids=zeros.long(),
        node_ids=torch.arange(6).view(2, 3),
        parent=torch.full((2,), -1),
        fork_position=torch.zeros(2, dtype=torch.int64),
        stop=[StopReason.END] * 2,
        n_tool_calls=torch.zeros(2, dtype=torch.int64),
        engine_logprobs=zeros,
        policy_versions=zeros.long(),
        entropies=entropies,
    )


def test_the_documented_weights_are_a_softmax_over_a_rollouts_trained_tokens() -> None:
    """Hand-computed: exp(0) : exp(ln 3) = 1 : 3, times the two tokens; centred rewards are +-0.5."""
    entropies = torch.tensor([[0.0, math.log(3), 9.0], [9.0, 5.0, 9.0]])
    found = AepoSoftmax(AepoSoftmaxConfig(normalize_std=False))(inputs(entropies)).advantages
    assert torch.allclose(found, torch.tensor([[0.25, 0.75, 0.0], [0.0, -0.5, 0.0]]))


def test_weights_without_entropies_are_an_error_and_not_silence() -> None:
    with pytest.raises(ConfigError) as caught:
        AepoSoftmax(AepoSoftmaxConfig())(inputs(None))
    assert str(caught.value) == "advantage: aepo_softmax needs the entropies of tokens, and the batch has none"
    [problem] = option_problems(AepoSoftmaxConfig(temperature=0.0))
    assert problem.startswith("temperature ")
