from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ramet.config.schema import ModelConfig, RunConfig
from ramet.models.torch_setup import check_torch, set_up_torch


@pytest.mark.parametrize(
    ("deterministic", "device", "cuda", "refused"),
    [
        (True, "auto", True, True),
        (True, "cpu", True, False),
        (True, "auto", False, False),
        (False, "auto", True, False),
    ],
)
def test_a_deterministic_run_is_refused_where_auto_means_cuda(
    monkeypatch: pytest.MonkeyPatch, deterministic: bool, device: str, cuda: bool, refused: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    problems = check_torch(RunConfig(deterministic=deterministic), ModelConfig(path="m", device=device))
    assert [problem.partition(":")[0] for problem in problems] == ["run.deterministic=true"] * refused


@pytest.mark.parametrize("seed", [7, -1, 2**40])
def test_the_seed_reaches_every_generator_of_the_process(seed: int) -> None:
    def draws() -> tuple[float, float, float]:
        set_up_torch(RunConfig(seed=seed, threads=torch.get_num_threads()))
        return random.random(), float(np.random.random()), float(torch.rand(()))

    assert draws() == draws()
