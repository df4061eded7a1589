"""Two ranks that share every sequence find the log-probabilities and gradients of one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoConfig, PretrainedConfig

from ramet.policy.distributed.ulysses import check_ulysses

OnRanks = Callable[..., list[Any]]
FILE = "ulysses_ranks.py"
TOLERANCE = 1e-5


def close(differences: list[dict[str, tuple[float, float]]]) -> None:
    for found in differences:
        for name, (logprobs, gradients) in found.items():
            assert logprobs < TOLERANCE and gradients < TOLERANCE, (name, logprobs, gradients)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_log_probabilities_and_gradients_are_those_of_one_rank(ranks: OnRanks, architecture: str, packed: bool):
    found = ranks("models", architecture, packed, file=FILE)
    assert found[0].keys() == {"4/1", "4/2", "4/4", "6/3"}
    close(found)


def test_so_they_are_in_every_way_of_computing_attention(ranks: OnRanks):
    found = ranks("ways", file=FILE)
    assert len(found[0]) == 8
    close(found)


def test_packed_sequences_do_not_see_each_other_across_ranks(ranks: OnRanks):
    assert ranks("leaks", file=FILE) == [0.0, 0.0]


def test_a_shared_model_is_not_run_in_another_way(ranks: OnRanks):
    assert set(ranks("plain_call", file=FILE)) == {"a model under sequence parallelism is run by ulysses_states"}


def config(**changed: Any) -> PretrainedConfig:
    values = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}
    return AutoConfig.for_model(changed.pop("architecture", "qwen2"), **(values | changed))


@pytest.mark.parametrize(
    ("changed", "size", "problem"),
    [
        ({}, 4, r"policy\.sequence_parallel=4 does not divide the model's 6 attention heads; allowed: 1, 2, 3, 6"),
        ({"architecture": "gemma"}, 2, r"^policy\.sequence_parallel.* 'gemma'; "),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
            2,
            "rotary .* 'dynamic' ",
        ),
    ],
)
def test_what_cannot_be_shared_is_said_before_the_start(changed: dict[str, Any], size: int, problem: str):
    found = check_ulysses(config(**changed), size)
    assert len(found) == 1 and re.search(problem, found[0])


def test_any_model_runs_on_one_rank_and_a_divisor_of_the_heads_is_allowed():
    assert check_ulysses(config(architecture="gemma"), 1) == []
    assert check_ulysses(config(), 2) == check_ulysses(config(), 3) == check_ulysses(config(), 6) == []
