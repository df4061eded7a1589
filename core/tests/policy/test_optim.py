from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter

from ramet.config.schema import Offload, PolicyConfig, Schedule
from ramet.policy.checkpoint.state import Progress, load_state, stage_state, write_state
from ramet.policy.host_memory import HostBuffers
from ramet.policy.optim import OffloadedState, clip_gradients, learning_rate, make_optimizer


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule.CONSTANT, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (Schedule.LINEAR, [0.5, 1.0, 1.0, 0.775, 0.55, 0.325]),
        (Schedule.COSINE, [0.5, 1.0, 1.0, 0.1 + 0.45 * (1 + math.cos(math.pi / 4)), 0.55, None]),
    ],
)
def test_schedules_by_hand(schedule: Schedule, expected: list[float | None]) -> None:
    config = PolicyConfig(lr=1.0, schedule=schedule, warmup_steps=2, min_lr_ratio=0.1)
    for step, rate in enumerate(expected, start=1):
        if rate is not None:
            assert learning_rate(config, step, 6) == pytest.approx(rate)


def test_the_rate_never_falls_below_its_minimum() -> None:
    config = PolicyConfig(lr=2.0, schedule=Schedule.COSINE, min_lr_ratio=0.25)
    assert learning_rate(config, 1000, 10) == pytest.approx(0.5)


def test_gradients_over_the_limit_are_scaled_and_the_norm_before_is_told() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([parameter], 1.0) == pytest.approx(5.0)
    assert parameter.grad.norm().item() == pytest.approx(1.0, rel=1e-4)
    assert clip_gradients([parameter], 10.0) == pytest.approx(1.0, rel=1e-4)
    assert parameter.grad.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_the_optimiser_takes_its_options_from_the_configuration() -> None:
    config = PolicyConfig(lr=0.1, beta2=0.95, weight_decay=0.5)
    options = make_optimizer([torch.nn.Parameter(torch.zeros(1))], config).param_groups[0]
    assert (options["lr"], options["betas"], options["weight_decay"]) == (0.1, (0.9, 0.95), 0.5)


def test_many_parameters_are_stepped_by_one_kernel_on_a_cpu_unless_the_run_is_deterministic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = PolicyConfig(lr=0.1)
    monkeypatch.setattr("ramet.policy.optim.MANY", 10)
    weights, gradient = torch.linspace(-1, 1, 10), torch.linspace(3, -2, 10)
    stepped = []
    for deterministic in (False, True):
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda answer=deterministic: answer)
        parameter = Parameter(weights.clone())
        optimizer = make_optimizer([parameter], config)
        assert optimizer.defaults["fused"] is (None if deterministic else True)
        for _ in range(3):
            parameter.grad = gradient * parameter.detach()
            optimizer.step()
        stepped.append(parameter.detach())
    assert torch.allclose(*stepped, rtol=1e-5, atol=1e-6) and not torch.allclose(stepped[0], weights)
    assert make_optimizer([Parameter(weights[1:].clone())], config).defaults["fused"] is None


def test_on_a_gpu_a_step_is_fused_and_its_count_is_there_after_a_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A CPU has fused AdamW, too, so what a GPU would do is done here."""
    config = PolicyConfig(lr=0.1)
    assert make_optimizer([Parameter(torch.ones(2))], config).defaults["fused"] is None
    monkeypatch.setattr(Parameter, "is_cuda", True, raising=False)
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = make_optimizer(model.parameters(), config)
    assert optimizer.defaults["fused"] is True
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    write_state(tmp_path, stage_state(model, optimizer, Progress(step=1), HostBuffers(pin=False), rank=0, world_size=1))
    load_state(tmp_path, model, optimizer, rank=0, world_size=1, seed=1)
    count = optimizer.state[model.weight]["step"]
    assert count.device == model.weight.device and float(count) == 1.0
    optimizer.step()


def stepped(config: PolicyConfig, *, offloaded: bool = False) -> list[torch.Tensor]:
    """Weights and moments after three steps."""
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 48)
    optimizer = make_optimizer(model.parameters(), config)
    away = OffloadedState(optimizer, torch.device("cpu"), pin=False)
    for i in range(3):
        for parameter in model.parameters():
            parameter.grad = parameter.detach() * (i + 0.5)
        if offloaded:
            away.to_device()
        optimizer.step()
        if offloaded:
            away.to_host()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [*(parameter.detach() for parameter in model.parameters()), *moments]


def test_what_is_offloaded_is_stepped_by_one_kernel_on_the_cpu() -> None:
    """The same bits every time. Not those of a step tensor by tensor, which runs without GPUs keep."""
    config = PolicyConfig(lr=0.01, offload=Offload.ALL)
    assert make_optimizer([Parameter(torch.ones(2))], config).defaults["fused"] is True
    once, again, plain = stepped(config), stepped(config), stepped(PolicyConfig(lr=0.01))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(once, plain, strict=True))


def test_state_that_was_away_between_steps_is_the_same() -> None:
    config = PolicyConfig(lr=0.01)
    for a, b in zip(stepped(config), stepped(config, offloaded=True), strict=True):
        assert torch.equal(a, b)


def test_moments_go_to_the_same_host_memory_every_time_and_counts_stay() -> None:
    parameters = [Parameter(torch.ones(3)), Parameter(torch.ones(2)), Parameter(torch.ones(1), requires_grad=False)]
    optimizer = make_optimizer(parameters, PolicyConfig())
    away = OffloadedState(optimizer, torch.device("meta"), pin=False)
    away.to_host()  # nothing before the first step
    assert not optimizer.state
    for parameter in parameters[:2]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.state[parameters[0]]["exp_avg"].fill_(7)
    own = optimizer.state[parameters[0]]
    away.to_host()
    kept = own["exp_avg"]
    assert kept.tolist() == [7, 7, 7] and own["exp_avg_sq"].data_ptr() == kept.data_ptr() + 64
    away.to_host()
    assert own["exp_avg"] is kept and kept.tolist() == [7, 7, 7]
    away.to_device()
    assert own["exp_avg"].is_meta and own["exp_avg_sq"].is_meta and not own["step"].is_meta
