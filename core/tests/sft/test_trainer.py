from __future__ import annotations

import math
import random
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import AutoModelForCausalLM, PreTrainedModel

from ramet.config.schema import Config, Dtype
from ramet.config.schema_sft import TRAINER_DEFAULTS
from ramet.errors import ConfigError
from ramet.planning.memory_sft import SftInputs, sft_state
from ramet.sft.checkpoints import newest_complete, step_of
from ramet.sft.encode import Example
from ramet.sft.trainer import total_steps, train, training_arguments


def example(seed: int) -> Example:
    rng = random.Random(seed)
    ids = [rng.randrange(97, 123) for _ in range(rng.randrange(8, 20))]
    return Example(token_ids=array("i", [*ids, *ids]), trained=array("b", [0] * len(ids) + [1] * len(ids)))


EXAMPLES = [example(seed) for seed in range(40)]


def configured(**sft: Any) -> Config:
    config = Config()
    config.run.seed = 7
    chosen = {"max_steps": 12, "sequences_per_step": 4, "lr": 3e-3, "logging_steps": 5, "save_steps": 1000, **sft}
    config.sft.trainer = {name: chosen.pop(name) for name in TRAINER_DEFAULTS if name in chosen}
    for name, value in chosen.items():
        setattr(config.sft, name, value)
    return config


def trained(
    model: Path, run: Path, tracker: Any, config: Config, examples: list[Example] = EXAMPLES
) -> tuple[PreTrainedModel, Any]:
    network = AutoModelForCausalLM.from_pretrained(model)
    torch.set_num_threads(1)
    return network, train(network, examples, config, run, tracker=tracker)


def same(a: PreTrainedModel, b: PreTrainedModel) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_the_loss_falls_and_every_tenth_step_and_the_last_step_are_logged(
    tiny_model: Path, tmp_path: Path, recorded: Any
) -> None:
    _, result = trained(tiny_model, tmp_path, recorded, configured(max_steps=33, logging_steps=10, lr=1e-2))
    assert [step for step, _ in recorded.entries] == [10, 20, 30, 33]
    losses = [metrics["sft/loss"] for _, metrics in recorded.entries]
    assert losses[-1] < losses[0] - 0.5
    assert result.final_loss == losses[-1]
    assert result.curves["loss"] == ([10.0, 20.0, 30.0, 33.0], losses)
    assert list(tmp_path.glob("checkpoints/*")) == []


def test_the_loss_is_the_mean_over_the_trained_tokens_of_a_step(
    tiny_model: Path, tmp_path: Path, recorded: Any
) -> None:
    trained(tiny_model, tmp_path, recorded, configured(max_steps=1, sequences_per_step=40, lr=1e-9))
    network = AutoModelForCausalLM.from_pretrained(tiny_model)
    total, count = 0.0, 0
    for one in EXAMPLES:
        ids = torch.tensor([list(one.token_ids)])
        logprobs = network(ids).logits.log_softmax(-1)[0]
        for position in range(1, len(one)):
            if one.trained[position]:
                total -= logprobs[position - 1, one.token_ids[position]].item()
                count += 1
    assert recorded.entries[0][1]["sft/loss"] == pytest.approx(total / count, rel=1e-5)


def test_what_is_held_is_what_the_plan_says_to_the_byte(
    tiny_model: Path, tmp_path: Path, recorded: Any, sft_inputs: Callable[..., SftInputs]
) -> None:
    held: dict[str, int] = {}

    def look(adam: torch.optim.Optimizer, *_: object) -> None:
        held["weights"] = sum(p.nbytes for p in adam.state)
        held["gradients"] = sum(p.grad.nbytes for p in adam.state if p.grad is not None)
        held["optimiser"] = sum(v.nbytes for one in adam.state.values() for v in one.values() if v.dim())

    hook = register_optimizer_step_post_hook(look)
    try:
        trained(tiny_model, tmp_path, recorded, configured(max_steps=1))
    finally:
        hook.remove()
    assert held == sft_state(sft_inputs("none"))


def test_a_large_model_is_stepped_by_one_kernel_to_the_same_weights(
    tiny_model: Path, tmp_path: Path, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)  # other tests may ask for it
    used = []
    hook = register_optimizer_step_post_hook(lambda adam, *_: used.append(adam.defaults["fused"]))
    try:
        plain, _ = trained(tiny_model, tmp_path / "plain", recorded, configured(max_steps=3))
        monkeypatch.setattr("ramet.policy.optim.MANY", 10)
        fast, _ = trained(tiny_model, tmp_path / "fast", recorded, configured(max_steps=3))
    finally:
        hook.remove()
    assert [bool(fused) for fused in used] == [False] * 3 + [True] * 3
    for one, other in zip(fast.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("budget", [40, 60, 200])
def test_numbers_do_not_depend_on_the_budget(tiny_model: Path, tmp_path: Path, recorded: Any, budget: int) -> None:
    """Losses and gradient norms of single sequences, of two or three in a pass, and of a step in one pass."""
    options = {"max_steps": 6, "logging_steps": 1, "sequences_per_step": 7}
    trained(tiny_model, tmp_path / "whole", recorded, configured(**options))
    trained(tiny_model, tmp_path / "cut", recorded, configured(**options, max_microbatch_tokens=budget))
    whole, cut = recorded.entries[:6], recorded.entries[6:]
    for key in ("sft/loss", "sft/grad_norm"):
        assert [one[key] for _, one in cut] == pytest.approx([one[key] for _, one in whole], abs=1e-5)


def test_speed_and_padding_are_reported(tiny_model: Path, tmp_path: Path, recorded: Any) -> None:
    trained(tiny_model, tmp_path, recorded, configured(max_steps=2, logging_steps=1, sequences_per_step=1))
    for _, metrics in recorded.entries:
        assert metrics["sft/tokens_per_s"] > 0
        assert metrics["sft/padding_share"] == 0  # one sequence a pass
    recorded.entries.clear()
    trained(tiny_model, tmp_path / "more", recorded, configured(max_steps=2, logging_steps=1, sequences_per_step=40))
    assert all(0 < metrics["sft/padding_share"] < 0.15 for _, metrics in recorded.entries)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(
    tiny_model: Path, tmp_path: Path, recorded: Any
) -> None:
    other = configured()
    other.run.seed = 8
    a, _ = trained(tiny_model, tmp_path / "a", recorded, configured())
    b, _ = trained(tiny_model, tmp_path / "b", recorded, configured())
    c, _ = trained(tiny_model, tmp_path / "c", recorded, other)
    assert same(a, b)
    assert not same(a, c)


@pytest.mark.parametrize("budget", [16384, 40])
def test_a_training_resumed_within_an_epoch_ends_with_the_same_weights(
    tiny_model: Path, tmp_path: Path, recorded: Any, budget: int
) -> None:
    options = {"sequences_per_step": 6, "max_microbatch_tokens": budget, "max_steps": 17, "save_steps": 7}
    whole, _ = trained(tiny_model, tmp_path / "whole", recorded, configured(**options))
    checkpoint = tmp_path / "whole" / "checkpoints" / "checkpoint-14"
    (tmp_path / "again" / "checkpoints").mkdir(parents=True)
    checkpoint.rename(tmp_path / "again" / "checkpoints" / "checkpoint-14")
    again, result = trained(tiny_model, tmp_path / "again", recorded, configured(**options))
    assert (result.resumed_step, result.steps) == (14, 17)
    assert recorded.rewound == [-1, 14]
    assert same(whole, again)


def test_a_resume_logs_and_saves_as_often_as_it_is_told_now(
    tiny_model: Path, tmp_path: Path, recorded: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"sequences_per_step": 3, "max_steps": 17}
    trained(tiny_model, tmp_path, recorded, configured(**options, logging_steps=5, save_steps=7))
    for step in (7, 14):
        assert (tmp_path / "checkpoints" / f"checkpoint-{step}").is_dir()
    shutil.rmtree(tmp_path / "checkpoints" / "checkpoint-14")
    recorded.entries.clear()
    trained(tiny_model, tmp_path, recorded, configured(**options, logging_steps=2, save_steps=3))
    assert [step for step, _ in recorded.entries] == [8, 10, 12, 14, 16, 17]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["checkpoint-12", "checkpoint-15"]
    assert "trainer_state.json" not in capfd.readouterr().err


def test_only_a_complete_checkpoint_is_resumed(tiny_model: Path, tmp_path: Path, recorded: Any) -> None:
    trained(tiny_model, tmp_path, recorded, configured(max_steps=9, save_steps=4))
    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-4", "checkpoint-8"]
    newest = newest_complete(folder)
    assert step_of(newest) == 8
    assert newest is not None
    for name in ("trainer_state.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt"):
        content = (newest / name).read_bytes()
        (newest / name).write_bytes(content[: len(content) // 2])
        assert step_of(newest_complete(folder)) == 4, name
        (newest / name).unlink()
        assert step_of(newest_complete(folder)) == 4, name
        (newest / name).write_bytes(content)
    assert step_of(newest_complete(folder)) == 8


def test_a_flipped_byte_in_the_optimiser_is_found(tiny_model: Path, tmp_path: Path, recorded: Any) -> None:
    trained(tiny_model, tmp_path, recorded, configured(max_steps=5, save_steps=4))
    file = tmp_path / "checkpoints" / "checkpoint-4" / "optimizer.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert newest_complete(tmp_path / "checkpoints") is None


def test_fewer_steps_than_are_trained_already_are_refused(tiny_model: Path, tmp_path: Path, recorded: Any) -> None:
    trained(tiny_model, tmp_path, recorded, configured(max_steps=9, save_steps=8))
    with pytest.raises(ConfigError, match="has trained 8 steps already, and now 6 are asked for"):
        trained(tiny_model, tmp_path, recorded, configured(max_steps=6, save_steps=4))


def test_a_loss_that_is_no_number_stops_the_training(tiny_model: Path, tmp_path: Path, recorded: Any) -> None:
    with pytest.raises(ConfigError, match=r"^sft: the loss is nan at "):
        trained(
            tiny_model,
            tmp_path,
            recorded,
            configured(lr=1e30, logging_steps=1, lr_scheduler_type="constant_with_warmup"),
        )


def test_no_checkpoint_is_written_after_a_loss_that_is_no_number(
    tiny_model: Path, tmp_path: Path, recorded: Any
) -> None:
    """However seldom losses are logged: a resume would go on from weights that are no numbers."""
    with pytest.raises(ConfigError) as raised:
        trained(
            tiny_model,
            tmp_path,
            recorded,
            configured(max_steps=9, save_steps=4, logging_steps=9, lr=1e30, warmup_ratio=0.0),
        )
    assert str(raised.value) == (
        "sft: the loss is nan at step 4; a smaller sft.lr (now 1e+30) or a larger "
        "sft.trainer.warmup_ratio may keep it finite"
    )
    assert not list(tmp_path.glob("checkpoints/*"))


def test_bfloat16_computes_in_half_and_keeps_float32_weights(tiny_model: Path, tmp_path: Path, recorded: Any) -> None:
    config = configured(max_steps=3)
    config.model.dtype = Dtype.BFLOAT16
    network, result = trained(tiny_model, tmp_path, recorded, config)
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert math.isfinite(result.final_loss)


@pytest.mark.parametrize(("epochs", "per_step", "steps"), [(1.0, 4, 10), (3.0, 7, 18), (2.0, 16, 6), (0.5, 4, 5)])
def test_the_number_of_steps_follows_from_epochs_and_sequences(epochs: float, per_step: int, steps: int) -> None:
    config = configured(max_steps=None, epochs=epochs, sequences_per_step=per_step).sft
    assert total_steps(config, 40) == steps


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant_with_warmup"])
def test_arguments_of_trainer_reach_it(tmp_path: Path, schedule: str) -> None:
    chosen = {"warmup_ratio": 0.1, "max_grad_norm": 0.5, "weight_decay": 0.2, "adam_beta2": 0.9}
    config = configured(lr_scheduler_type=schedule, **chosen)
    arguments = training_arguments(config, tmp_path, steps=101, use_cpu=True)
    assert arguments.get_warmup_steps(101) == 11
    assert arguments.lr_scheduler_type == schedule
    assert (arguments.max_grad_norm, arguments.weight_decay, arguments.adam_beta2) == (0.5, 0.2, 0.9)
