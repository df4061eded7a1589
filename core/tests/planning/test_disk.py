"""Bytes on disk: the plan against a checkpoint that was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ramet.config.schema import Config, ModelConfig, PolicyConfig
from ramet.models.tiny import make_tiny_model
from ramet.planning.disk import DiskPlan, checkpoint_bytes, plan_disk
from ramet.planning.memory import Inputs, estimate
from ramet.planning.model_shape import shape_of
from ramet.planning.placement import Machine
from ramet.policy.checkpoint.state import Progress, stage_state, write_state
from ramet.types import Need


def test_a_checkpoint_is_as_large_as_planned(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "tiny", hidden=128, layers=2, heads=2, intermediate=512)
    model = AutoModelForCausalLM.from_pretrained(path)
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    optimizer.step()
    write_state(tmp_path / "saved", stage_state(model, optimizer, Progress(), None, rank=0, world_size=1))
    written = sum(file.stat().st_size for file in (tmp_path / "saved").iterdir())
    config = Config(model=ModelConfig(path=str(path)))
    inputs = Inputs(
        config=config,
        shape=shape_of(AutoConfig.from_pretrained(path)),
        machine=Machine(cuda=False, devices=1, device_bytes=None),
    )
    assert checkpoint_bytes(inputs) == pytest.approx(written, rel=0.1)


def test_adapters_are_small_and_a_critic_is_a_second_model(make_inputs: Callable[..., Inputs]) -> None:
    inputs = make_inputs()
    whole = checkpoint_bytes(inputs)
    assert whole == 12 * inputs.shape.n_parameters
    assert 1.8 * whole < checkpoint_bytes(replace(inputs, needs=frozenset({Need.VALUES}))) < 2 * whole
    lora = replace(inputs, config=replace(inputs.config, policy=PolicyConfig(lora_rank=16)))
    assert checkpoint_bytes(lora) < whole / 50


def test_the_plan_counts_the_checkpoint_that_is_written_and_warns_of_a_small_disk(tmp_path: Path) -> None:
    plan = DiskPlan(checkpoint=2 * 10**9, kept=3, model=10**9, free=20 * 10**9)
    assert str(plan) == (
        "3 checkpoints of about 2 GB kept, and one more while it is written; model/ 1 GB; 9 GB in all; 20 GB free"
    )
    warned = str(replace(plan, free=10**9))
    assert "\nwarning: the disk has 8 GB less than that: free some space, or keep fewer checkpoints" in warned
    assert "; 9 GB in all, of which 8.5 GB are there; 1 GB free" in str(replace(plan, there=85 * 10**8, free=10**9))
    assert "warning: the disk has 1 GB less" in str(replace(plan, there=7 * 10**9, free=10**9))
    assert str(replace(plan, kept=0, free=None)) == "model/ 1 GB; 1 GB in all"
    assert plan_disk("not estimated: no shapes", tmp_path, kept=3) == ""


def test_the_plan_says_how_long_a_resume_hashes(make_inputs: Callable[..., Inputs], tmp_path: Path) -> None:
    """32.8 billion parameters on 64 ranks take less than a minute; on one rank more than six."""
    plan = DiskPlan(checkpoint=12 * 32_762_123_264, kept=2, model=10**9, free=None, verifiers=64)
    assert str(plan).splitlines()[1:] == [
        "a resume hashes 393 GB, with 64 ranks of 1 GB/s each in about 6 s; a file system that gives less bounds it"
    ]
    assert "with 1 rank of 1 GB/s each in about 393 s" in str(replace(plan, verifiers=1))
    assert "under a second" in str(replace(plan, checkpoint=10**9))
    assert "resume" not in str(replace(plan, kept=0))
    assert "a resume hashes" in plan_disk(estimate(make_inputs()), tmp_path, kept=1)
