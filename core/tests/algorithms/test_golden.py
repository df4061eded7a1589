"""Agreement with values that the reference implementation computed (float32; tolerance 1e-6, absolute or relative)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ramet.algorithms.advantages.config import GaeConfig, GrpoConfig
from ramet.algorithms.advantages.gae import Gae
from ramet.algorithms.advantages.grpo import Grpo
from ramet.algorithms.aggregation import TokenCounts, aggregate, token_weights
from ramet.algorithms.kl import kl_estimate
from ramet.algorithms.logprobs import Entropy, logprobs_from_logits
from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.algorithms.value_loss import value_loss
from ramet.config.schema import KlEstimator, LossAggregation
from ramet.types import AdvantageInputs, LossInputs

GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "golden" / "values" / "algorithms.json"
KL_NAMES = {"kl": KlEstimator.K1, "mse": KlEstimator.K2, "low_var_kl": KlEstimator.K3}

AGGREGATIONS = {"seq-mean-token-sum-norm": "token-sum-norm"}  # as released it is divided by the constant alone


def cases(function: str) -> list[dict[str, Any]]:
    return [case for case in json.loads(GOLDEN.read_text())["cases"] if case["function"] == function]


def same(found: Tensor | float, expected: Any) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float32)
    torch.testing.assert_close(torch.as_tensor(found, dtype=torch.float32), expected, rtol=1e-6, atol=1e-6)


def weights_of(mode: str, mask: Tensor) -> Tensor:
    """The weights of a padded `[N, T]` batch, flattened; every position counts to the padded length."""
    counts = TokenCounts(tokens=int(mask.sum()), rollouts=len(mask), max_tokens=mask.shape[1])
    sequences = torch.arange(len(mask)).repeat_interleave(mask.shape[1])
    return token_weights(LossAggregation(AGGREGATIONS.get(mode, mode)), mask.flatten(), sequences, counts)


@pytest.mark.parametrize("case", cases("grpo"))
def test_grpo_agrees(case: dict[str, Any], advantage_batch: Callable[..., AdvantageInputs]) -> None:
    given = case["input"]
    names = sorted(set(given["index"]))
    batch = advantage_batch(
        torch.tensor(given["token_level_rewards"]).sum(1),
        [names.index(name) for name in given["index"]],
        torch.tensor(given["response_mask"]).bool(),
    )
    config = GrpoConfig(normalize_std=given["norm_adv_by_std"], eps=given["epsilon"])
    same(Grpo(config)(batch).advantages, case["output"]["advantages"])


@pytest.mark.parametrize("case", cases("gae"))
def test_gae_agrees(case: dict[str, Any], advantage_batch: Callable[..., AdvantageInputs]) -> None:
    """The release whitens the padding too; ours is 0 there."""
    given, mask = case["input"], torch.tensor(case["input"]["response_mask"]).bool()
    rows = len(mask)
    rewards, values = torch.tensor(given["token_level_rewards"]), torch.tensor(given["values"])
    batch = advantage_batch([0.0] * rows, list(range(rows)), mask, rewards, values)
    output = Gae(GaeConfig(gamma=given["gamma"], lam=given["lam"]))(batch)
    assert output.returns is not None
    same(output.advantages, torch.tensor(case["output"]["advantages"]) * mask)
    same(output.returns, case["output"]["returns"])


@pytest.mark.parametrize("case", cases("value_loss"))
def test_the_value_loss_agrees(case: dict[str, Any]) -> None:
    given, mask = case["input"], torch.tensor(case["input"]["response_mask"]).bool()
    values, old, returns = (torch.tensor(given[name]).flatten() for name in ("vpreds", "values", "returns"))
    loss = value_loss(values, old, returns, given["cliprange_value"])
    same(aggregate(loss.per_token, weights_of(given["loss_agg_mode"], mask)), case["output"]["vf_loss"])
    same(loss.clipped[mask.flatten()].mean(), case["output"]["vf_clipfrac"])


@pytest.mark.parametrize("case", cases("policy_loss") + cases("policy_loss_scalar"))
def test_ppo_clip_agrees(case: dict[str, Any], loss_batch: Callable[..., LossInputs]) -> None:
    given, expected = case["input"], case["output"]
    if "ratio" in given:
        logprobs, old = torch.tensor([[given["ratio"]]]).log(), torch.zeros(1, 1)
        advantages, mask = torch.tensor([[given["advantage"]]]), torch.ones(1, 1, dtype=torch.bool)
    else:
        logprobs, old = torch.tensor(given["log_prob"]), torch.tensor(given["old_log_prob"])
        advantages, mask = torch.tensor(given["advantages"]), torch.tensor(given["response_mask"]).bool()
    low, high = (given[key] or given["cliprange"] for key in ("cliprange_low", "cliprange_high"))
    logprobs.requires_grad_()
    loss = PpoClip(PpoClipConfig(clip_low=low, clip_high=high, dual_clip=given["clip_ratio_c"]))
    output = loss(loss_batch(logprobs.flatten(), old.flatten(), advantages.flatten(), mask.flatten()))
    total = aggregate(output.per_token, weights_of(given["loss_agg_mode"], mask))
    total.backward()
    same(total.detach(), expected["pg_loss"])
    same(logprobs.grad, expected["grad_log_prob"])
    names = {"clip_fraction": "pg_clipfrac", "clip_fraction_low": "pg_clipfrac_lower", "approx_kl": "ppo_kl"}
    for ours, theirs in names.items():
        same(output.metrics[ours][mask.flatten()].mean(), expected[theirs])


@pytest.mark.parametrize("case", cases("agg_loss"))
def test_aggregation_agrees(case: dict[str, Any]) -> None:
    given = case["input"]
    mask = torch.tensor(given["loss_mask"]).bool()
    same(aggregate(torch.tensor(given["loss_mat"]).flatten(), weights_of(given["mode"], mask)), case["output"])


@pytest.mark.parametrize("case", cases("kl_penalty"))
def test_kl_agrees(case: dict[str, Any]) -> None:
    given = case["input"]
    kind = KL_NAMES.get(given["kind"]) or KlEstimator(given["kind"])
    same(kl_estimate(torch.tensor(given["logprob"]), torch.tensor(given["ref_logprob"]), kind), case["output"])


@pytest.mark.parametrize("case", cases("logprobs_from_logits"))
def test_logprobs_agree(case: dict[str, Any]) -> None:
    logits, targets = torch.tensor(case["input"]["logits"]), torch.tensor(case["input"]["labels"])
    found, _ = logprobs_from_logits(logits.flatten(0, 1), targets.flatten(), 1.0)
    same(found.view(targets.shape), case["output"])


@pytest.mark.parametrize("case", cases("entropy_from_logits"))
def test_entropies_agree(case: dict[str, Any]) -> None:
    logits = torch.tensor(case["input"]["logits"])
    targets = torch.zeros(logits.shape[:2], dtype=torch.int64)
    _, found = logprobs_from_logits(logits.flatten(0, 1), targets.flatten(), 1.0, Entropy.DETACHED)
    same(found.view(targets.shape), case["output"])
