from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.config.schema import Dtype, KlEstimator, LossAggregation, ModelConfig, Offload, OldLogprobs, Schedule
from ramet.errors import ConfigError, PluginError
from ramet.policy.advantages import estimate
from ramet.policy.batching.partition import minibatches
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.errors import OutOfMemory, TrainingDiverged
from ramet.policy.logprob_model import TokenLogprobs
from ramet.policy.optim import OffloadedState
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec
from ramet.types import AdvantageInputs, AdvantageOutput, LossInputs, LossOutput, Need

MakeSpec = Callable[..., PolicySpec]
MakeRows = Callable[..., list[Row]]
MakeAdvantages = Callable[[list[Row]], Tensor]


def parameters(worker: PolicyRank) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in worker.model.parameters()])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_plain_model(
    make_spec: MakeSpec, make_rows: MakeRows, tiny: Path, temperature: float
) -> None:
    rows = make_rows(7)
    logprobs, entropies = PolicyRank(make_spec(temperature=temperature)).logprobs_and_entropies(rows)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    for row, found, entropy in zip(rows, logprobs, entropies, strict=True):
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.response_ids])).long()
        with torch.no_grad():
            plain = torch.distributions.Categorical(logits=model(ids[None]).logits[0, :-1] / temperature)
        start = len(row.prompt_ids) - 1
        expected = plain.log_prob(ids[1:])[start:] * torch.from_numpy(row.mask)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(entropy, plain.entropy()[start:] * torch.from_numpy(row.mask), atol=1e-5)


def test_a_teacher_scores_as_its_plain_model_does(make_spec: MakeSpec, make_rows: MakeRows, untied: Path) -> None:
    """Also after an update of the policy, which does not change it."""
    rows = make_rows(5)
    worker = PolicyRank(replace(make_spec(temperature=0.7), teacher=ModelConfig(path=str(untied))))
    worker.update(TrainBatch(rows=rows).with_advantages(torch.ones(5, max(len(row.mask) for row in rows))), 1)
    model = AutoModelForCausalLM.from_pretrained(untied)
    for row, found in zip(rows, worker.rescore(rows), strict=True):
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.response_ids])).long()
        with torch.no_grad():
            plain = (model(ids[None]).logits[0, :-1] / 0.7).log_softmax(-1)
        expected = plain.gather(1, ids[1:, None])[len(row.prompt_ids) - 1 :, 0] * torch.from_numpy(row.mask)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    without = PolicyRank(make_spec())
    np.testing.assert_array_equal(without.rescore(rows)[0], without.logprobs(rows)[0])


def test_an_update_makes_good_tokens_likelier_and_bad_ones_less_likely(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(6)
    worker = PolicyRank(make_spec())
    before = worker.logprobs(rows)
    metrics = worker.update(TrainBatch(rows=rows, old_logprobs=before).with_advantages(make_advantages(rows)), 1)
    after = worker.logprobs(rows)
    moved = [(b - a).sum() for a, b in zip(before, after, strict=True)]
    assert all(change > 0 for change in moved[::2]) and all(change < 0 for change in moved[1::2])
    assert metrics["train/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["train/tokens"] == sum(row.n_trained for row in rows)
    assert metrics["train/optimizer_steps"] == 1.0


def test_an_update_reports_what_the_design_promises(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(6)
    worker = PolicyRank(make_spec(kl_coef=0.1, minibatches=2, epochs=2))
    old, (_, entropies) = worker.logprobs(rows), worker.logprobs_and_entropies(rows)
    reference = worker.reference_logprobs(rows)
    batch = TrainBatch(rows=rows, old_logprobs=old, ref_logprobs=reference).with_advantages(make_advantages(rows))
    metrics = worker.update(batch, 1)
    gaps = np.concatenate([np.abs(o - r.engine_logprobs)[r.mask] for o, r in zip(old, rows, strict=True)])
    weights = np.concatenate([np.exp(o - r.engine_logprobs)[r.mask] for o, r in zip(old, rows, strict=True)])
    assert metrics["train/engine_gap_mean"] == pytest.approx(gaps.mean(), rel=1e-4)
    assert metrics["train/engine_gap_max"] == pytest.approx(gaps.max(), rel=1e-4)
    assert metrics["train/tis_weight"] == pytest.approx(np.minimum(weights, 2.0).mean(), rel=1e-4)
    assert metrics["train/entropy"] == pytest.approx(
        np.mean(np.concatenate(entropies)[np.concatenate([r.mask for r in rows])]), rel=0.02
    )
    assert metrics["train/optimizer_steps"] == 4.0
    assert metrics["train/ratio_p01"] <= 1.0 <= metrics["train/ratio_p99"] <= metrics["train/ratio_max"]
    names = "loss grad_norm kl_reference approx_kl clip_fraction clip_fraction_low tis_truncated tokens_per_s lr"
    assert all(np.isfinite(metrics[f"train/{name}"]) for name in names.split())


@pytest.mark.parametrize("mode", list(LossAggregation))
def test_the_update_does_not_depend_on_how_rows_are_packed(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, mode: LossAggregation
) -> None:
    rows = make_rows(8)
    results = []
    for budget in (1, 60, 4096):
        spec = make_spec(loss_aggregation=mode, max_microbatch_tokens=budget, kl_coef=0.1, entropy_coef=0.01)
        worker = PolicyRank(spec)
        reference = [row.engine_logprobs for row in rows]
        batch = TrainBatch(rows=rows, ref_logprobs=reference, kl_coef=0.1).with_advantages(make_advantages(rows))
        metrics = worker.update(batch, 1)
        results.append((parameters(worker), metrics["train/loss"], metrics["train/grad_norm"]))
    for found, loss, norm in results[1:]:
        torch.testing.assert_close(found, results[0][0], rtol=0, atol=2e-5)
        assert (loss, norm) == pytest.approx(results[0][1:], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("mode", [LossAggregation.TOKEN_MEAN, LossAggregation.SEQ_MEAN_TOKEN_MEAN])
def test_two_copies_of_weight_a_half_train_as_one_row(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, mode: LossAggregation
) -> None:
    """In the policy loss, the KL and entropy terms and the denominators."""
    rows = make_rows(3)
    advantages, twice = make_advantages(rows), [0, 0, 1, 1, 2, 2]
    if mode is LossAggregation.TOKEN_MEAN:
        twice = [0, 1, 1, 2]
    weights = torch.tensor([1 / twice.count(i) for i in twice])[:, None].expand(-1, advantages.shape[1])
    reference = [row.engine_logprobs for row in rows]
    plain = TrainBatch(rows=rows, ref_logprobs=reference, kl_coef=0.1).with_advantages(advantages)
    copies = [rows[i] for i in twice]
    again = [reference[i] for i in twice]
    doubled = TrainBatch(rows=copies, ref_logprobs=again, kl_coef=0.1)
    doubled = doubled.with_advantages(advantages[twice], weights=weights)
    results = []
    for batch in (plain, doubled):
        worker = PolicyRank(make_spec(loss_aggregation=mode, kl_coef=0.1, entropy_coef=0.01, tis_cap=None))
        metrics = worker.update(batch, 1)
        results.append((parameters(worker), metrics["train/loss"], metrics["train/grad_norm"]))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=0, atol=2e-5)
    assert results[1][1:] == pytest.approx(results[0][1:], rel=1e-5, abs=1e-7)


def test_packed_rows_train_as_padded_ones(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(8)
    padded, packed = PolicyRank(make_spec()), PolicyRank(make_spec())
    packed.policy._cost = None
    found, expected = (
        w.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1) for w in (packed, padded)
    )
    assert found["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-5)
    torch.testing.assert_close(parameters(packed), parameters(padded), rtol=0, atol=2e-5)


def test_inserted_tokens_and_their_advantages_do_not_train(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(4)
    clean, dirty = make_advantages(rows), make_advantages(rows)
    for i, row in enumerate(rows):
        dirty[i, : len(row.mask)][~torch.from_numpy(row.mask)] = 1e6
        dirty[i, len(row.mask) :] = float("nan")
    first, second = PolicyRank(make_spec()), PolicyRank(make_spec())
    first.update(TrainBatch(rows=rows).with_advantages(clean), 1)
    second.update(TrainBatch(rows=rows).with_advantages(dirty), 1)
    assert torch.equal(parameters(first), parameters(second))


def test_without_given_log_probabilities_one_optimiser_step_is_on_policy(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(6)
    first, second = PolicyRank(make_spec()), PolicyRank(make_spec())
    first.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    second.update(TrainBatch(rows=rows, old_logprobs=second.logprobs(rows)).with_advantages(make_advantages(rows)), 1)
    torch.testing.assert_close(parameters(first), parameters(second), rtol=0, atol=2e-5)


def test_several_optimiser_steps_keep_the_old_policy_of_the_step(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(6)
    spec = make_spec(epochs=3, minibatches=2)
    first, second = PolicyRank(spec), PolicyRank(spec)
    found = first.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    second.update(TrainBatch(rows=rows, old_logprobs=second.logprobs(rows)).with_advantages(make_advantages(rows)), 1)
    assert torch.equal(parameters(first), parameters(second))
    assert found["train/ratio_max"] > 1.001


def test_the_engines_log_probabilities_can_be_those_of_the_old_policy(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(6)
    worker = PolicyRank(make_spec(old_logprobs=OldLogprobs.ENGINE))
    trainer = worker.logprobs(rows)
    metrics = worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    gaps = np.concatenate([np.abs(t - r.engine_logprobs)[r.mask] for t, r in zip(trainer, rows, strict=True)])
    assert metrics["train/tis_weight"] == 1.0
    assert metrics["train/engine_gap_mean"] == pytest.approx(gaps.mean(), rel=1e-4)
    assert metrics["train/ratio_max"] > 1.01


def test_minibatches_are_drawn_by_seed_step_and_epoch(make_spec: MakeSpec) -> None:
    train = make_spec(minibatches=4, epochs=2).train
    order = minibatches(10, train, seed=1, step=5)
    assert [len(chosen) for chosen in order] == [2, 3, 2, 3] * 2
    assert sorted(chain(*order[:4])) == sorted(chain(*order[4:])) == list(range(10))
    assert order == minibatches(10, train, seed=1, step=5)
    assert order[:4] != order[4:]
    assert order != minibatches(10, train, seed=1, step=6) and order != minibatches(10, train, seed=2, step=5)


def test_more_minibatches_than_rows_leave_out_the_empty_ones(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(3)
    metrics = PolicyRank(make_spec(minibatches=8)).update(
        TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1
    )
    assert metrics["train/optimizer_steps"] == 3.0


def test_no_rows_are_no_update(make_spec: MakeSpec) -> None:
    worker = PolicyRank(make_spec())
    before = parameters(worker)
    metrics = worker.update(TrainBatch(rows=[]).with_advantages(torch.zeros(0, 0)), 1)
    assert metrics["train/optimizer_steps"] == metrics["train/tokens"] == 0.0
    assert torch.equal(parameters(worker), before)


def test_a_reference_is_loaded_only_if_it_is_needed(make_spec: MakeSpec, make_rows: MakeRows) -> None:
    worker = PolicyRank(make_spec())
    assert worker.reference is None
    with pytest.raises(RuntimeError, match="no reference was loaded"):
        worker.reference_logprobs(make_rows(2))
    for options in ({"kl_coef": 0.1}, {"needs": frozenset({Need.REFERENCE})}):
        assert PolicyRank(make_spec(**options)).reference is not None


def test_the_reference_stays_where_the_run_began(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(4)
    worker = PolicyRank(make_spec(kl_coef=0.5, kl_estimator=KlEstimator.K3))
    before = worker.reference_logprobs(rows)
    batch = TrainBatch(rows=rows, ref_logprobs=before, kl_coef=0.5).with_advantages(make_advantages(rows))
    first, second = worker.update(batch, 1), worker.update(batch, 2)
    assert first["train/kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert second["train/kl_reference"] > 1e-5
    for found, expected in zip(worker.reference_logprobs(rows), before, strict=True):
        assert np.array_equal(found, expected)


def test_a_straight_through_kl_has_the_value_of_its_name_and_another_gradient(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows, found = make_rows(4), {}
    for estimator in (KlEstimator.K1, KlEstimator.K1_PLUS, KlEstimator.K2):
        worker = PolicyRank(make_spec(kl_coef=0.5, kl_estimator=estimator))
        reference = [row.engine_logprobs - 0.3 for row in rows]
        advantages = make_advantages(rows)
        batch = TrainBatch(rows=rows, ref_logprobs=reference, kl_coef=0.5).with_advantages(advantages)
        found[estimator] = worker.update(batch, 1)
    first, straight, second = found.values()
    assert straight["train/kl_reference"] == pytest.approx(first["train/kl_reference"])
    assert straight["train/grad_norm"] == pytest.approx(second["train/grad_norm"], rel=1e-5)
    assert straight["train/grad_norm"] != pytest.approx(first["train/grad_norm"], rel=1e-3)


def test_the_kl_of_a_step_has_the_coefficient_of_its_batch(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows, losses = make_rows(4), []
    reference = [row.engine_logprobs - 0.3 for row in rows]
    for spec_coef, batch_coef in ((0.5, 0.5), (0.1, 0.5), (0.1, 0.1)):
        worker = PolicyRank(make_spec(kl_coef=spec_coef))
        batch = TrainBatch(rows=rows, ref_logprobs=reference, kl_coef=batch_coef).with_advantages(make_advantages(rows))
        losses.append(worker.update(batch, 1)["train/loss"])
    assert losses[0] == pytest.approx(losses[1]) and losses[0] != pytest.approx(losses[2], rel=1e-3)


def test_tokens_outside_their_band_do_not_train_and_are_counted(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(4)
    batch = TrainBatch(rows=rows).with_advantages(make_advantages(rows))
    plain = PolicyRank(make_spec()).update(batch, 1)
    assert "train/tis_left_out" not in plain and 0 < plain["train/tis_effective"] <= 1
    nothing = PolicyRank(make_spec(off_policy={"token_band": [1e8, 1e9]})).update(batch, 1)
    assert (nothing["train/tis_left_out"], nothing["train/tis_effective"], nothing["train/loss"]) == (1.0, 0.0, 0.0)
    assert nothing["train/grad_norm"] == 0


@dataclass
class Breakable:
    """A loss that is not finite while it is broken."""

    broken: bool = False
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=-batch.logprobs * (float("nan") if self.broken else 1.0))


def test_a_step_that_is_not_finite_is_skipped_and_changes_nothing(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(4)
    loss = Breakable()
    worker = PolicyRank(make_spec(policy_loss=loss))
    worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    loss.broken = True
    before, state = parameters(worker), copy.deepcopy(worker.policy.optimizer.state_dict()["state"])
    metrics = worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 2)
    assert (metrics["train/skipped_updates"], metrics["train/optimizer_steps"]) == (1.0, 0.0)
    assert "train/loss" not in metrics
    assert torch.equal(parameters(worker), before)
    for found, expected in zip(worker.policy.optimizer.state_dict()["state"].values(), state.values(), strict=True):
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert worker.policy.bad_steps == 1
    loss.broken = False
    assert (
        worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 3)["train/skipped_updates"] == 0.0
    )
    assert worker.policy.bad_steps == 0


def test_training_stops_after_too_many_bad_steps_in_a_row(
    make_spec: MakeSpec,
    make_rows: MakeRows,
    make_advantages: MakeAdvantages,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = make_rows(4)
    loss = Breakable()
    worker = PolicyRank(make_spec(policy_loss=loss))
    monkeypatch.setattr("ramet.policy.model_trainer.MAX_BAD_STEPS", 2)
    for step, broken in ((1, True), (2, False), (3, True)):
        loss.broken = broken
        worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), step)
    good = parameters(worker)
    said = r"step 4: loss nan \(policy loss .*\.Breakable\), .*not finite 2 times in a row; "
    with pytest.raises(TrainingDiverged, match=said):
        worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 4)
    assert torch.equal(parameters(worker), good)


def test_a_device_that_is_too_small_is_told_with_what_helps_and_leaves_the_state_whole(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F18. A CPU never raises it, hence torch's own error, in the second of two micro-batches."""
    rows = make_rows(4)
    worker = PolicyRank(make_spec(max_microbatch_tokens=rows[0].n_tokens))
    compute, calls = worker.policy.module.forward, iter(range(9))

    def full(*arguments: Any) -> TokenLogprobs:
        if next(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nlong advice")
        return compute(*arguments)

    before = parameters(worker)
    monkeypatch.setattr(worker.policy.module, "forward", full)
    with pytest.raises(OutOfMemory) as raised:
        worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    assert str(raised.value) == (
        "policy rank 0: the memory of cpu is too small for a pass: CUDA out of memory. Tried to allocate 2 GiB. Lower "
        f"policy.max_microbatch_tokens={rows[0].n_tokens}, or set policy.activation_checkpointing=true, or use several "
        "ranks (cluster=ray cluster.policy_workers=2); `ramet train … --dry-run` estimates what each helps "
        "(docs/troubleshooting.md#out-of-memory)"
    )
    monkeypatch.setattr(worker.policy.module, "forward", compute)
    assert torch.equal(parameters(worker), before)
    batch = TrainBatch(rows=rows).with_advantages(make_advantages(rows))
    again, expected = (each.update(batch, 1) for each in (worker, PolicyRank(worker.spec)))
    assert again["train/grad_norm"] == expected["train/grad_norm"]


@dataclass
class Curious:
    """Records what it is given."""

    needs: frozenset[Need]
    seen: list[LossInputs] = field(default_factory=list)

    def __call__(self, batch: LossInputs) -> LossOutput:
        self.seen.append(batch)
        return LossOutput(per_token=-batch.logprobs)


def test_a_loss_gets_what_it_needs_and_nothing_that_costs_more(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(3)
    plain, rich = Curious(frozenset()), Curious(frozenset({Need.ENTROPY, Need.REFERENCE}))
    for loss in (plain, rich):
        batch = TrainBatch(rows=rows, ref_logprobs=[row.engine_logprobs for row in rows]).with_advantages(
            make_advantages(rows)
        )
        PolicyRank(make_spec(policy_loss=loss)).update(batch, 1)
    assert all(batch.entropies is None and batch.ref_logprobs is None for batch in plain.seen)
    assert all(batch.entropies is not None and batch.entropies.requires_grad for batch in rich.seen)
    assert all(batch.ref_logprobs is not None for batch in rich.seen)
    assert sum(len(batch.mask) for batch in plain.seen) == sum(len(row.response_ids) for row in rows)
    assert sum(int(batch.sequence_ids.max()) + 1 for batch in plain.seen) == len(rows)


@dataclass
class Summed:
    """A loss that forgets that it owes one value per token."""

    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=-batch.logprobs.sum())


class Bare(Summed):
    def __call__(self, batch: LossInputs) -> Any:
        return -batch.logprobs


class Attached(Summed):
    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=-batch.logprobs, metrics={"mine": batch.logprobs})


class Crashes(Summed):
    def __call__(self, batch: LossInputs) -> Any: return {}["lost"]  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (Summed(), ": per_token has shape []: return one value per token, here [17]; the core aggregates"),
        (Bare(), ": returned Tensor: return a LossOutput"),
        (Attached(), ": metric 'mine' is attached to the graph: detach it"),
        (Crashes(), " raised KeyError: 'lost'"),
    ],
)
def test_a_loss_that_breaks_the_contract_is_the_plugins_error(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, loss: Any, what: str
) -> None:
    rows = make_rows(2)
    worker = PolicyRank(make_spec(policy_loss=loss))
    with pytest.raises(PluginError) as caught:
        worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    line = f"core/tests/policy/test_worker.py:{type(loss).__call__.__code__.co_firstlineno}"
    assert str(caught.value) == f"policy loss {type(loss).__module__}.{type(loss).__name__}{what} ({line})"


class Overwrites:
    """The usual loss, which clips the engine's log-probabilities in place."""

    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: LossInputs) -> LossOutput:
        batch.engine_logprobs.clamp_(max=-6.0)
        return PpoClip(PpoClipConfig())(batch)


def test_a_loss_that_changes_its_inputs_is_named_with_what_it_changed(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(4)
    worker = PolicyRank(make_spec(policy_loss=Overwrites()))
    with pytest.raises(PluginError, match=r"policy loss .*Overwrites changed its inputs in place: engine_logprobs"):
        worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)


def test_an_estimator_that_changes_its_inputs_is_named_with_what_it_changed(make_rows: MakeRows) -> None:
    class Centres:
        needs: frozenset[Need] = frozenset()

        def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
            batch.rewards.sub_(batch.rewards.mean())
            return AdvantageOutput(advantages=batch.rewards[:, None] * batch.mask)

    rows = make_rows(4)
    with pytest.raises(PluginError, match=r"advantage estimator .*Centres changed its inputs in place: rewards; work"):
        estimate(Centres(), TrainBatch(rows=rows, old_logprobs=[row.engine_logprobs for row in rows]))


def test_weights_are_the_names_and_values_of_the_plain_model(make_spec: MakeSpec, tiny: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(tiny).state_dict()
    found = dict(PolicyRank(make_spec()).weights())
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], plain[name]) and not found[name].requires_grad for name in plain)


@pytest.mark.parametrize("checkpointing", [True, 2])
def test_activation_checkpointing_changes_no_number(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, checkpointing: bool | int
) -> None:
    rows = make_rows(5)
    plain, saving = (PolicyRank(make_spec(activation_checkpointing=value)) for value in (False, checkpointing))
    for worker in (plain, saving):
        worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    assert saving.model.is_gradient_checkpointing
    assert torch.equal(parameters(plain), parameters(saving))


def test_bfloat16_trains_float32_weights_so_that_small_steps_are_not_lost(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tiny: Path
) -> None:
    rows = make_rows(4)
    worker = PolicyRank(make_spec(model=ModelConfig(path=str(tiny), dtype=Dtype.BFLOAT16), lr=1e-6))
    before = parameters(worker)
    metrics = worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    after = parameters(worker)
    assert after.dtype is torch.float32 and np.isfinite(metrics["train/loss"])
    assert (after != before).float().mean() > 0.9
    assert torch.equal(after.bfloat16(), before.bfloat16()) or (after - before).abs().max() < 1e-5


def test_an_exported_folder_has_the_weights_and_the_tokenizer(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tmp_path: Path
) -> None:
    rows = make_rows(4)
    worker = PolicyRank(make_spec())
    worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    worker.export(tmp_path / "hf")
    again = PolicyRank(make_spec(model=ModelConfig(path=str(tmp_path / "hf"))))
    assert torch.equal(parameters(again), parameters(worker))


def test_a_bfloat16_export_says_so_in_its_config(make_spec: MakeSpec, tiny: Path, tmp_path: Path) -> None:
    worker = PolicyRank(make_spec(model=ModelConfig(path=str(tiny), dtype=Dtype.BFLOAT16)))
    worker.export(tmp_path / "hf")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert again.dtype is torch.bfloat16
    assert worker.model.dtype is torch.float32


def test_a_spec_and_its_results_pickle(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    spec = pickle.loads(pickle.dumps(make_spec()))
    rows = pickle.loads(pickle.dumps(make_rows(2)))
    metrics = PolicyRank(spec).update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    assert pickle.loads(pickle.dumps(metrics)) == metrics


def test_more_ranks_than_have_met_are_refused_instead_of_training_copies(make_spec: MakeSpec) -> None:
    with pytest.raises(RuntimeError, match="policy rank 0 of 2: this process is rank 0 of 1; call join_ranks first"):
        PolicyRank(make_spec(), world_size=2)


def test_a_model_that_changes_its_logits_after_the_head_is_refused(make_spec: MakeSpec, tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        "cohere",
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        logit_scale=0.1,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="CohereForCausalLM changes its logits"):
        PolicyRank(make_spec(model=ModelConfig(path=str(tmp_path))))


def test_at_rest_memory_is_given_back_after_the_garbage_and_when_the_device_is_done(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = PolicyRank(make_spec(kl_coef=0.1))
    order: list[str] = []
    monkeypatch.setattr("gc.collect", lambda: order.append("collect"))
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: order.append(f"synchronize {device}"))
    monkeypatch.setattr("torch.cuda.ipc_collect", lambda: order.append("collect exports"))
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: order.append("empty"))
    monkeypatch.setattr("ramet.policy.model_trainer.reshard", lambda module: order.append(type(module).__name__))
    worker.rest()
    assert order == ["LogprobModel", "LogprobModel"]  # the policy's and the reference's; a collection takes 0.2 s
    order.clear()
    worker.policy.device = torch.device("cuda")
    worker.rest()
    assert order[2:] == ["collect", "synchronize cuda", "collect exports", "empty"]


@pytest.mark.parametrize("diverges", [False, True])
def test_an_offloaded_optimiser_travels_once_per_update(
    make_spec: MakeSpec,
    make_rows: MakeRows,
    make_advantages: MakeAdvantages,
    monkeypatch: pytest.MonkeyPatch,
    diverges: bool,
) -> None:
    """Offloading asks for a GPU; here host memory takes its place, and what counts is the order and the result."""
    monkeypatch.setattr("ramet.policy.rank.check_policy_options", lambda *_: [])
    monkeypatch.setattr("ramet.policy.model_trainer.MAX_BAD_STEPS", 1)
    rows = make_rows(6)
    batch = TrainBatch(rows=rows).with_advantages(make_advantages(rows))
    worker, plain = (
        PolicyRank(make_spec(offload=offload, minibatches=2, epochs=2)) for offload in (Offload.OPTIMIZER, Offload.NONE)
    )
    order: list[str] = []
    to_device, to_host, step = OffloadedState.to_device, OffloadedState.to_host, worker.policy.optimizer.step
    monkeypatch.setattr(OffloadedState, "to_device", lambda own: (order.append("to device"), to_device(own)))
    monkeypatch.setattr(OffloadedState, "to_host", lambda own: (order.append("to host"), to_host(own)))
    monkeypatch.setattr(worker.policy.optimizer, "step", lambda: (order.append("step"), step()))
    if diverges:
        monkeypatch.setattr("ramet.policy.model_trainer.clip_gradients", lambda *_: float("nan"))
        with pytest.raises(TrainingDiverged):
            worker.update(batch, 1)
        assert order == ["to host"]
        return
    for number in (1, 2):
        worker.update(batch, number)
        plain.update(batch, number)
    assert order == [*["to device", "step"] * 4, "to host"] * 2  # but the first of each finds everything there
    assert torch.equal(parameters(worker), parameters(plain))


def test_the_schedule_begins_with_the_first_update_of_the_policy(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    """Of 6 steps the critic alone learns in the first 2, so that a warm-up of 2 is not over before it begins."""
    rows, rates = make_rows(2), []
    spec = make_spec(lr=0.1, warmup_steps=2, schedule=Schedule.LINEAR, total_steps=6, critic_warmup_steps=2)
    worker = PolicyRank(spec)
    for step in range(3, 7):
        rates.append(worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), step)["train/lr"])
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.05])
