"""Adapters of `algorithms.json`: estimators and losses as the registry builds them, functions of `ramet.algorithms`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from golden_adapter import Adapter
from golden_cases import Case
from torch import Tensor

from ramet.algorithms.advantages.whitening import whiten
from ramet.algorithms.aggregation import TokenCounts, aggregate, token_weights
from ramet.algorithms.kl import kl_estimate
from ramet.algorithms.kl_control import KlController
from ramet.algorithms.kl_control import kl_penalty as kl_penalty_of_rewards
from ramet.algorithms.logprobs import Entropy, logprobs_from_logits
from ramet.algorithms.value_loss import value_loss as clipped_value_loss
from ramet.config.schema import KlEstimator, LossAggregation
from ramet.plugins import load_plugins
from ramet.policy.metric_accumulator import MetricAccumulator
from ramet.types import AdvantageInputs, LossInputs, PolicyLoss, StopReason

KL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}  # the released names of ours
AGGREGATIONS = {"seq-mean-token-sum-norm": "token-sum-norm"}  # as released it is divided by the constant alone
METRICS = {"pg_clipfrac": "clip_fraction", "pg_clipfrac_lower": "clip_fraction_low", "ppo_kl": "approx_kl"}


def floats(values: Any) -> Tensor:
    """Nested lists of numbers, in which `nan` and `inf` are strings."""
    return torch.tensor(_numbers(values), dtype=torch.float32)


def _numbers(values: Any) -> Any:
    return [_numbers(value) for value in values] if isinstance(values, list) else float(values)


def build(kind: str, name: str, **options: Any) -> Any:
    """The component as a run would get it."""
    entry = load_plugins().get(kind, name)
    return entry.build(None if entry.config is None else entry.config(**options))


def grpo(given: dict[str, Any]) -> dict[str, Any]:
    estimator = build("advantages", "grpo", normalize_std=given["norm_adv_by_std"], eps=given["epsilon"])
    output = estimator(advantage_inputs(given, given["index"]))
    return {"advantages": output.advantages.tolist()}


def gae(given: dict[str, Any]) -> dict[str, Any]:
    """As released: time passes in tool results as well."""
    estimator = build("advantages", "gae", gamma=given["gamma"], lam=given["lam"], skip_inserted=False)
    no_groups = [str(row) for row in range(len(given["values"]))]
    output = estimator(advantage_inputs(given, no_groups, values=floats(given["values"])))
    return {"advantages": output.advantages.tolist(), "returns": output.returns.tolist()}


def by_group(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """An estimator that looks at rewards and groups alone, with its defaults."""

    def run(given: dict[str, Any]) -> dict[str, Any]:
        output = build("advantages", name)(advantage_inputs(given, given["index"]))
        return {"advantages": output.advantages.tolist()}

    return run


def reinforce_pp(given: dict[str, Any]) -> dict[str, Any]:
    """As released: no reward reaches what was sampled before a tool result."""
    estimator = build("advantages", "reinforce_pp", gamma=given["gamma"], skip_inserted=False)
    no_groups = [str(row) for row in range(len(given["response_mask"]))]
    return {"advantages": estimator(advantage_inputs(given, no_groups)).advantages.tolist()}


def remax(given: dict[str, Any]) -> dict[str, Any]:
    no_groups = [str(row) for row in range(len(given["response_mask"]))]
    batch = advantage_inputs(given, no_groups)
    batch = dataclasses.replace(batch, greedy_rewards=floats(given["reward_baselines"]))
    return {"advantages": build("advantages", "remax")(batch).advantages.tolist()}


def masked_whiten(given: dict[str, Any]) -> list[Any]:
    return whiten(floats(given["values"]), floats(given["mask"]).bool()).tolist()


def apply_kl_penalty(given: dict[str, Any]) -> dict[str, Any]:
    mask = floats(given["response_mask"]).bool()
    old, ref = floats(given["old_log_probs"]), floats(given["ref_log_prob"])
    kind = KlEstimator(KL_NAMES.get(given["kind"], given["kind"]))
    found = kl_penalty_of_rewards(old, ref, mask, coef=given["beta"], estimator=kind)
    rewards = floats(given["token_level_scores"]) + found.token_rewards
    return {"token_level_rewards": rewards.tolist(), "current_kl": found.kl}


def adaptive_kl_controller(given: dict[str, Any]) -> list[float]:
    controller = KlController(coef=given["init_kl_coef"], target=given["target_kl"], horizon=given["horizon"])
    found = []
    for kl in given["current_kls"]:
        controller.update(kl, given["n_steps"])
        found.append(controller.coef)
    return found


def advantage_inputs(given: dict[str, Any], groups: list[str], values: Tensor | None = None) -> AdvantageInputs:
    """The rewards come token by token; groups are numbered in the order of their names."""
    rewards, mask = floats(given["token_level_rewards"]), floats(given["response_mask"]).bool()
    names = sorted(set(groups))
    rows, tokens = len(rewards), torch.zeros(mask.shape)
    return AdvantageInputs(
        rewards=torch.zeros(rows),
        reward_parts={},
        mask=mask,
        group_ids=torch.tensor([names.index(name) for name in groups]),
        turn_ids=tokens.long(),
        thread_ids=tokens.long(),
        node_ids=torch.arange(tokens.numel()).view(tokens.shape),
        parent=torch.full((rows,), -1),
        fork_position=torch.zeros(rows, dtype=torch.int64),
        stop=[StopReason.ANSWER] * rows,
        n_tool_calls=torch.zeros(rows, dtype=torch.int64),
        engine_logprobs=tokens,
        policy_versions=tokens.long(),
        token_rewards=rewards,
        values=values,
    )


def policy_loss(given: dict[str, Any]) -> dict[str, Any]:
    low, high = (
        given["cliprange"] if given[key] is None else given[key] for key in ("cliprange_low", "cliprange_high")
    )
    loss = build("policy_losses", "ppo_clip", clip_low=low, clip_high=high, dual_clip=given["clip_ratio_c"])
    return loss_and_gradient(loss, given, floats(given["advantages"]))


def aepo_policy_loss(given: dict[str, Any]) -> dict[str, Any]:
    """The release weighs advantages by entropy within its loss, if it is given any; ours is an estimator's part."""
    name = "aepo" if given["entropy_balanced_clipping"] else "ppo_clip"
    clip = {"clip_low": given["cliprange_low"], "clip_high": given["cliprange_high"]}
    advantages = floats(given["advantages"])
    if given["entropy_balanced_advantage"] and given["entropy"] is not None:
        from ramet_aepo.advantage import entropy_factor  # the plugin may not be installed

        mask = floats(given["response_mask"]).bool()
        advantages = (advantages * entropy_factor(floats(given["entropy"]), mask, 0.2)).float()
    return loss_and_gradient(build("policy_losses", name, **clip, dual_clip=given["clip_ratio_c"]), given, advantages)


def loss_and_gradient(loss: PolicyLoss, given: dict[str, Any], advantages: Tensor) -> dict[str, Any]:
    logprobs, mask = floats(given["log_prob"]).requires_grad_(), floats(given["response_mask"]).bool()
    output = loss(loss_inputs(logprobs, floats(given["old_log_prob"]), advantages, mask))
    total = aggregated(output.per_token, mask, given["loss_agg_mode"])
    total.backward()
    metrics = MetricAccumulator()
    for name, values in output.metrics.items():
        metrics.token_mean(name, values, mask.flatten().nonzero().flatten())
    means = metrics.result()
    assert logprobs.grad is not None
    found = {theirs: means[ours] for theirs, ours in METRICS.items()}
    return {"pg_loss": total.item(), "grad_log_prob": logprobs.grad.tolist(), **found}


def value_loss(given: dict[str, Any]) -> dict[str, Any]:
    values, old, returns = (floats(given[key]) for key in ("vpreds", "values", "returns"))
    mask = floats(given["response_mask"]).bool()
    loss = clipped_value_loss(values.flatten(), old.flatten(), returns.flatten(), given["cliprange_value"])
    metrics = MetricAccumulator()
    metrics.token_mean("clipped", loss.clipped, mask.flatten().nonzero().flatten())
    total = aggregated(loss.per_token, mask, given["loss_agg_mode"])
    return {"vf_loss": total.item(), "vf_clipfrac": metrics.result()["clipped"]}


def policy_loss_scalar(given: dict[str, Any]) -> dict[str, Any]:
    """One token: the ratio is given instead of log-probabilities."""
    return policy_loss(
        {
            **given,
            "log_prob": floats([[given["ratio"]]]).log().tolist(),
            "old_log_prob": [[0.0]],
            "advantages": [[given["advantage"]]],
            "response_mask": [[1.0]],
        }
    )


def loss_inputs(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> LossInputs:
    """Padded `[N, T]` on the packed axis, padding included: the mask says what counts."""
    none = torch.zeros(mask.numel(), dtype=torch.int64)
    return LossInputs(
        logprobs=logprobs.flatten(),
        old_logprobs=old.flatten(),
        engine_logprobs=old.flatten(),
        advantages=advantages.flatten(),
        mask=mask.flatten(),
        sequence_ids=sequence_ids(mask),
        rollout_ids=sequence_ids(mask),
        group_ids=none,
        turn_ids=none,
        policy_versions=none,
    )


def sequence_ids(mask: Tensor) -> Tensor:
    return torch.arange(len(mask)).repeat_interleave(mask.shape[1])


def aggregated(per_token: Tensor, mask: Tensor, mode: str) -> Tensor:
    counts = TokenCounts(tokens=int(mask.sum()), rollouts=len(mask), max_tokens=mask.shape[1])
    return aggregate(
        per_token,
        token_weights(LossAggregation(AGGREGATIONS.get(mode, mode)), mask.flatten(), sequence_ids(mask), counts),
    )


def agg_loss(given: dict[str, Any]) -> float:
    mask = floats(given["loss_mask"]).bool()
    return aggregated(floats(given["loss_mat"]).flatten(), mask, given["mode"]).item()


def kl_penalty(given: dict[str, Any]) -> list[Any]:
    kind = KlEstimator(KL_NAMES.get(given["kind"], given["kind"]))
    return kl_estimate(floats(given["logprob"]), floats(given["ref_logprob"]), kind).tolist()


def logprobs(given: dict[str, Any]) -> list[Any]:
    logits, targets = floats(given["logits"]), torch.tensor(given["labels"])
    found, _ = logprobs_from_logits(logits.flatten(0, -2), targets.flatten(), 1.0)
    return found.view(targets.shape).tolist()


def entropies(given: dict[str, Any]) -> list[Any]:
    logits = floats(given["logits"])
    targets = torch.zeros(logits.shape[:-1], dtype=torch.int64)
    _, found = logprobs_from_logits(logits.flatten(0, -2), targets.flatten(), 1.0, Entropy.DETACHED)
    return found.view(targets.shape).tolist()


def aepo_is_installed(case: Case) -> bool:
    return "aepo" in load_plugins().registries.policy_losses


NO_RETURNS = {"returns": "what only a critic reads, and these estimators have none"}
ADAPTERS = {
    "grpo": Adapter(run=grpo, leaves_out=NO_RETURNS),
    "gae": Adapter(run=gae, inside_mask=frozenset({"advantages"})),
    "rloo": Adapter(run=by_group("rloo"), leaves_out=NO_RETURNS),
    "opo": Adapter(run=by_group("opo"), leaves_out=NO_RETURNS),
    "grpo_passk": Adapter(run=by_group("grpo_passk"), leaves_out=NO_RETURNS),
    "rfpp_baseline": Adapter(run=by_group("reinforce_pp_baseline"), leaves_out=NO_RETURNS),
    "reinforce_pp": Adapter(run=reinforce_pp, leaves_out=NO_RETURNS),
    "remax": Adapter(run=remax, leaves_out=NO_RETURNS, inside_mask=frozenset({"advantages"})),
    "masked_whiten": Adapter(run=masked_whiten, mask="mask"),
    "apply_kl_penalty": Adapter(run=apply_kl_penalty),
    "adaptive_kl_controller": Adapter(run=adaptive_kl_controller),
    "policy_loss": Adapter(run=policy_loss),
    "policy_loss_scalar": Adapter(run=policy_loss_scalar),
    "aepo_policy_loss": Adapter(run=aepo_policy_loss, covers=aepo_is_installed),
    "aepo_policy_loss_scalar": Adapter(run=aepo_policy_loss, covers=aepo_is_installed),
    "value_loss": Adapter(run=value_loss),
    "agg_loss": Adapter(run=agg_loss),
    "kl_penalty": Adapter(run=kl_penalty),
    "logprobs_from_logits": Adapter(run=logprobs),
    "entropy_from_logits": Adapter(run=entropies),
}
