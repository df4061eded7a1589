"""The advantages as their papers define them, against values computed token by token."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from ramet import AdvantageInputs, CallStatus, Need, Task, ToolRecord, user_prompt
from ramet.plugins.output_checks import advantage_problem
from ramet.testing.batches import tiny_batch
from ramet.testing.doubles import answered_rollout, written_rollout
from ramet_distill.config import DistillConfig, IgpoConfig, SdpoConfig
from ramet_distill.hindsight import Sdpo
from ramet_distill.information_gain import Igpo
from ramet_distill.teacher import Distill

PER_TOKEN = (
    "mask", "turn_ids", "thread_ids", "node_ids", "engine_logprobs", "policy_versions", "old_logprobs",
    "rescored_logprobs",
)  # fmt: skip
TASK = Task(id="t", prompt=user_prompt("6*7?"), answer=("42", "forty-two"))


def batch_of(estimator: Any, **fields: Any) -> AdvantageInputs:
    return replace(tiny_batch(3, estimator.needs), **fields)


def test_a_token_s_advantage_is_how_much_likelier_the_teacher_finds_it() -> None:
    estimator = Distill(DistillConfig(max_gap=0.2))
    batch = batch_of(estimator)
    assert batch.rescored_logprobs is not None and batch.old_logprobs is not None
    found = estimator(batch).advantages
    for row, token in batch.mask.nonzero().tolist():
        gap = float(batch.rescored_logprobs[row, token] - batch.old_logprobs[row, token])
        expected = 0.0 if math.isnan(gap) else min(max(gap, -0.2), 0.2)
        assert float(found[row, token]) == pytest.approx(expected, abs=1e-6)
    assert estimator.min_group == 1


def test_the_gradient_of_the_advantages_is_the_reverse_kl_s() -> None:
    """In expectation over one token of five, which is exact here."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=draw).requires_grad_()
    teacher = torch.randn(5, generator=draw).log_softmax(0)
    logprobs = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - teacher)).sum(), logits, retain_graph=True)
    ones = torch.ones(5, 1)
    batch = replace(
        batch_of(Distill(DistillConfig())),
        rewards=ones[:, 0], mask=ones.bool(), group_ids=torch.zeros(5, dtype=torch.int64),
        old_logprobs=logprobs.detach()[:, None], rescored_logprobs=teacher[:, None],
    )  # fmt: skip
    advantages = Distill(DistillConfig(max_gap=None))(batch).advantages[:, 0]
    (found,) = torch.autograd.grad(-(logprobs.detach().exp() * advantages * logprobs).sum(), logits)
    torch.testing.assert_close(found, exact)


def test_rewards_can_be_added_to_the_teacher() -> None:
    teacher_only, both = Distill(DistillConfig()), Distill(DistillConfig(reward_weight=0.5))
    batch = batch_of(both)
    added = (both(batch).advantages - teacher_only(batch).advantages) * 2
    for group in batch.group_ids.unique():
        rewards = batch.rewards[batch.group_ids == group].double()
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        found = added[batch.group_ids == group][:, 0]
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_feedback_is_another_s_solution_and_the_own_tools_errors() -> None:
    error = ToolRecord(
        turn=0, name="python", arguments={}, status=CallStatus.ERROR, text="NameError: x", wait_s=0, run_s=0, attempts=1
    )
    failed = replace(written_rollout(TASK, ["<python>x</python>", "7"]), tool_calls=(error,))
    solved, other = answered_rollout(TASK, "42"), answered_rollout(TASK, "41")
    first, second, third = Sdpo(SdpoConfig()).contexts([failed, solved, other], [0.0, 1.0, 0.0])
    assert first is not None and solved.response in first and "NameError: x" in first
    assert second is None  # the only solution is its own, and no tool failed
    assert third is not None and solved.response in third and "NameError" not in third
    short = Sdpo(SdpoConfig(max_chars=5, tool_errors=False)).contexts([failed, solved], [0.0, 1.0])
    assert short[0] is not None and solved.response[:5] in short[0] and solved.response[:6] not in short[0]


def test_a_rollout_without_feedback_is_not_learned_from() -> None:
    estimator = Sdpo(SdpoConfig())
    batch = batch_of(estimator)
    output = estimator(batch)
    assert not output.advantages[-1].any() and output.advantages[0][batch.mask[0]].all()
    assert output.metrics["advantage/feedback_share"] == pytest.approx(10 / 11)


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_a_turn_s_reward_is_what_it_adds_to_the_probability_of_the_gold_answer(gamma: float) -> None:
    estimator = Igpo(IgpoConfig(gamma=gamma))
    batch = batch_of(estimator)
    assert batch.probe_logprobs is not None
    found = estimator(batch).advantages
    turns = [int(batch.turn_ids[i][batch.mask[i]].max()) for i in range(len(batch.rewards))]
    for group in batch.group_ids.unique().tolist():
        rows = [i for i in range(len(turns)) if int(batch.group_ids[i]) == group]
        rewards: dict[tuple[int, int], float] = {(i, turns[i]): float(batch.rewards[i]) for i in rows}
        for i in rows:
            for turn in range(turns[i]):
                gain = math.exp(batch.probe_logprobs[i, turn + 1]) - math.exp(batch.probe_logprobs[i, turn])
                if not math.isnan(gain):
                    rewards[i, turn] = gain
        values = torch.tensor(list(rewards.values()), dtype=torch.float64)
        scaled = {key: (value - float(values.mean())) / (float(values.std()) + 1e-6) for key, value in rewards.items()}
        for i in rows:
            for token in batch.mask[i].nonzero().flatten().tolist():
                turn = int(batch.turn_ids[i, token])
                expected = sum(gamma ** (k - turn) * scaled.get((i, k), 0.0) for k in range(turn, turns[i] + 1))
                assert float(found[i, token]) == pytest.approx(expected, abs=1e-5)


def test_the_gold_answer_is_probed_after_the_tag() -> None:
    probe = Igpo(IgpoConfig()).probe(TASK)
    assert probe is not None and (probe.before, probe.text) == ("<answer>", "42")
    assert Igpo(IgpoConfig()).probe(replace(TASK, answer=())) is None
    assert Igpo.needs == {Need.PROBED}


@pytest.mark.parametrize("estimator", [Distill(DistillConfig()), Sdpo(SdpoConfig()), Igpo(IgpoConfig())])
def test_a_group_that_sampled_no_token_has_no_advantages_and_finite_metrics(estimator: Any) -> None:
    """An estimator is called by group, which may be one rollout whose step ended it without the policy."""
    full = batch_of(estimator)
    empty = {name: getattr(full, name)[:, :0] for name in PER_TOKEN if getattr(full, name) is not None}
    output = estimator(replace(full, **empty))
    assert advantage_problem(output, replace(full, **empty)) is None
