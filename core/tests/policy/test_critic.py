"""The critic learns what returns are learnable, whatever the packing, and goes on to the bit."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.config.schema import Dtype, ModelConfig, PolicyConfig, TrainConfig
from ramet.policy.batching.rows import Floats, Row
from ramet.policy.batching.train_batch import TrainBatch, padded
from ramet.policy.errors import CheckpointError, TrainingDiverged
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.types import CriticOptions

MakeRows = Callable[..., list[Row]]
MakeCritic = Callable[..., CriticSpec]
OnRanks = Callable[..., list[Any]]
TASKS = "critic_ranks.py"


@pytest.fixture
def make_critic(tiny: Path) -> MakeCritic:
    def build(
        *,
        dtype: Dtype = Dtype.FLOAT32,
        train: TrainConfig | None = None,
        policy: PolicyConfig | None = None,
        value_clip: float = 0.5,
        lr: float = 3e-3,
    ) -> CriticSpec:
        return CriticSpec(
            model=ModelConfig(path=str(tiny), dtype=dtype),
            policy=policy or PolicyConfig(),
            train=train or TrainConfig(),
            options=CriticOptions(lr=lr, value_clip=value_clip),
            total_steps=100,
            seed=1,
        )

    return build


def policy_of(critic: CriticSpec) -> PolicySpec:
    """With the critic's options, where both have them."""
    return PolicySpec(
        model=critic.model, policy=critic.policy, train=critic.train, policy_loss=PpoClip(PpoClipConfig()),
        temperature=1.0, max_response_tokens=32, total_steps=critic.total_steps, seed=critic.seed,
    )  # fmt: skip


def with_critic(critic: CriticSpec) -> PolicyRank:
    return PolicyRank(policy_of(critic), critic)


def returns_of(rows: list[Row]) -> Tensor:
    """`[N, T]`: by the last token before: low ids are bad and high ids are good."""
    before = [np.concatenate([row.prompt_ids[-1:], row.response_ids[:-1]]) for row in rows]
    return padded([(ids >= 128).astype(np.float32) * 2 - 1 for ids in before], torch.float32, 0)


def critic_batch(rows: list[Row], returns: Tensor, values: list[Floats]) -> TrainBatch:
    return TrainBatch(rows=rows, values=values).with_advantages(torch.zeros_like(returns), returns=returns)


def train(worker: PolicyRank, rows: list[Row], last: int, *, first: int = 1) -> dict[str, float]:
    """The metrics of the last step."""
    metrics: dict[str, float] = {}
    for step in range(first, last + 1):
        metrics = worker.update_critic(critic_batch(rows, returns_of(rows), worker.values(rows)), step)
    return metrics


def trained(spec: CriticSpec, rows: list[Row], steps: int) -> tuple[dict[str, float], list[Floats]]:
    """The metrics of the last step, and the values after it."""
    worker = with_critic(spec)
    return train(worker, rows, steps), worker.values(rows)


def weights(worker: PolicyRank) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in worker._need_critic().model.parameters()])


def test_values_begin_at_zero_and_are_computed_where_the_token_is_predicted(
    make_critic: MakeCritic, make_rows: MakeRows, tiny: Path
) -> None:
    rows = make_rows(5)
    worker = with_critic(make_critic())
    assert all(not values.any() for values in worker.values(rows))
    head = worker._need_critic().model.get_output_embeddings()
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(0)))
    model = AutoModelForCausalLM.from_pretrained(tiny)
    for row, found in zip(rows, worker.values(rows), strict=True):
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.response_ids])).long()
        with torch.no_grad():
            states = model.base_model(input_ids=ids[None]).last_hidden_state[0, len(row.prompt_ids) - 1 : -1]
            expected = head(states).squeeze(-1) * torch.from_numpy(row.mask)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_it_learns_returns_that_can_be_learned(make_critic: MakeCritic, make_rows: MakeRows) -> None:
    rows = make_rows(24, longest=24)
    returns = returns_of(rows)
    worker = with_critic(make_critic(value_clip=10.0))
    history = [worker.update_critic(critic_batch(rows, returns, worker.values(rows)), step) for step in range(1, 31)]
    assert history[0]["critic/loss"] == pytest.approx(1.0)
    assert history[0]["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert history[-1]["critic/loss"] < 0.1
    assert history[-1]["critic/explained_variance"] > 0.9
    assert history[-1]["critic/lr"] == 3e-3 and history[-1]["critic/grad_norm"] > 0


@pytest.mark.parametrize("budget", [1, 60])
def test_values_and_training_do_not_depend_on_how_rows_are_packed(
    make_critic: MakeCritic, make_rows: MakeRows, budget: int
) -> None:
    rows = make_rows(8)
    found = [trained(make_critic(policy=PolicyConfig(max_microbatch_tokens=n)), rows, 3) for n in (budget, 4096)]
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4, abs=1e-6)
    for left, right in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)
    packed, padded_rows = (with_critic(make_critic()) for _ in range(2))
    packed._need_critic()._cost = None  # one long row, as flash attention would get it
    for worker in (packed, padded_rows):
        train(worker, rows, 3)
    for left, right in zip(packed.values(rows), padded_rows.values(rows), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)


def test_inserted_tokens_and_their_returns_do_not_train(make_critic: MakeCritic, make_rows: MakeRows) -> None:
    rows = make_rows(6)
    mask = padded([row.mask for row in rows], torch.bool, 0)
    clean, dirty = with_critic(make_critic()), with_critic(make_critic())
    for worker, returns in ((clean, returns_of(rows)), (dirty, torch.where(mask, returns_of(rows), float("nan")))):
        worker.update_critic(critic_batch(rows, returns, worker.values(rows)), 1)
    assert torch.equal(weights(clean), weights(dirty))


def test_the_explained_variance_is_that_of_the_values_before_the_update(
    make_critic: MakeCritic, make_rows: MakeRows
) -> None:
    rows = make_rows(6)
    worker = with_critic(make_critic(lr=0.0))
    returns = returns_of(rows)
    by_row = TrainBatch(rows=rows).with_advantages(returns).advantages

    def explained(old_values: list[Floats]) -> float:
        return worker.update_critic(critic_batch(rows, returns, old_values), 1)["critic/explained_variance"]

    exact = [(values + 3).astype(np.float32) for values in by_row]
    assert explained(exact) == pytest.approx(1.0)  # a constant error explains the variance, and not the returns
    assert explained([-values for values in by_row]) == pytest.approx(-3.0)
    assert explained([np.zeros_like(values) for values in exact]) == pytest.approx(0.0)


def test_a_value_that_moved_further_than_the_clip_is_moved_no_further(
    make_critic: MakeCritic, make_rows: MakeRows
) -> None:
    rows = make_rows(6)
    far = padded([np.full(len(row.mask), 5.0, np.float32) for row in rows], torch.float32, 0)
    moved, fractions = [], []
    for clip in (0.01, 100.0):
        worker = with_critic(make_critic(value_clip=clip, train=TrainConfig(epochs=6), lr=1e-2))
        metrics = worker.update_critic(critic_batch(rows, far, worker.values(rows)), 1)
        fractions.append(metrics["critic/clip_fraction"])
        moved.append(np.concatenate(worker.values(rows)).mean())
    assert 0 < moved[0] < 0.5 * moved[1]
    assert fractions[0] > 0.5 and fractions[1] == 0


def test_its_learning_rate_is_its_own_and_follows_the_policys_schedule(
    make_critic: MakeCritic, make_rows: MakeRows
) -> None:
    policy = PolicyConfig(lr=1.0, warmup_steps=4)
    metrics, _ = trained(make_critic(policy=policy, lr=2e-3), make_rows(4), 2)
    assert metrics["critic/lr"] == pytest.approx(1e-3)
    assert policy.lr == 1.0


def test_in_bfloat16_it_computes_nearly_the_same(make_critic: MakeCritic, make_rows: MakeRows) -> None:
    rows = make_rows(6)
    (_, plain), (_, half) = (trained(make_critic(dtype=dtype), rows, 4) for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16))
    difference = np.abs(np.concatenate(plain) - np.concatenate(half)).max()
    assert 0 < difference < 0.1 * np.abs(np.concatenate(plain)).max()


def test_under_lora_the_adapter_and_the_head_are_trained(
    make_critic: MakeCritic, make_rows: MakeRows, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    rows = make_rows(6)
    spec = make_critic(policy=PolicyConfig(lora_rank=2))
    worker = with_critic(spec)
    first, last = train(worker, rows, 1), train(worker, rows, 30)
    assert last["critic/loss"] < 0.8 * first["critic/loss"]
    worker.stage()
    worker.write_staged(tmp_path)
    again = with_critic(spec)
    again.load(tmp_path)
    assert torch.equal(weights(worker), weights(again))


def test_a_resumed_critic_equals_the_undisturbed_one_to_the_bit(
    make_critic: MakeCritic, make_rows: MakeRows, tmp_path: Path
) -> None:
    rows = make_rows(6)
    spec = pickle.loads(pickle.dumps(make_critic(train=TrainConfig(minibatches=2, epochs=2))))
    worker = with_critic(spec)
    train(worker, rows, 2)
    worker.stage()
    train(worker, rows, 4, first=3)
    worker.write_staged(tmp_path)  # the state of when it was staged
    assert (tmp_path / "critic").is_dir()
    again = with_critic(spec)
    again.load(tmp_path)
    assert not torch.equal(weights(worker), weights(again))
    train(again, rows, 4, first=3)
    assert torch.equal(weights(worker), weights(again))
    with pytest.raises(RuntimeError, match="nothing is staged"):
        worker.write_staged(tmp_path)


def test_a_checkpoint_without_a_critic_is_refused(make_critic: MakeCritic, tmp_path: Path) -> None:
    worker = with_critic(make_critic())
    worker.stage()
    worker.write_staged(tmp_path)
    shutil.rmtree(tmp_path / "critic")
    with pytest.raises(CheckpointError, match="critic: could not read"):
        worker.load(tmp_path)


def test_returns_that_are_not_finite_leave_the_weights_and_end_the_run_if_they_stay(
    make_critic: MakeCritic, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows(4)
    worker = with_critic(make_critic())
    before, old = weights(worker), worker.values(rows)
    monkeypatch.setattr("ramet.policy.model_trainer.MAX_BAD_STEPS", 2)
    broken = returns_of(rows) * float("nan")
    assert worker.update_critic(critic_batch(rows, broken, old), 1)["critic/skipped_updates"] == 1.0
    with pytest.raises(TrainingDiverged, match=r"step 2.*2 times in a row.*advantage\.params\.critic_lr"):
        worker.update_critic(critic_batch(rows, broken, old), 2)
    assert torch.equal(weights(worker), before)


@pytest.mark.parametrize("sequence_parallel", [1, 2])
def test_two_ranks_train_as_one(
    ranks: OnRanks, make_critic: MakeCritic, make_rows: MakeRows, tmp_path: Path, sequence_parallel: int
) -> None:
    rows = make_rows(7)
    critic = make_critic(policy=PolicyConfig(max_microbatch_tokens=40, sequence_parallel=sequence_parallel))
    first, other = ranks("train_critic", policy_of(critic), critic, rows, returns_of(rows), tmp_path, file=TASKS)
    assert other == ({}, [])
    metrics, values = trained(make_critic(), rows, 3)
    assert first[0] == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    for left, right in zip(first[1], values, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)
    alone = with_critic(make_critic())
    alone.load(tmp_path)  # written by two
    for left, right in zip(first[1], alone.values(rows), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)
