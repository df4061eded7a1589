"""A resumed worker goes on to the bit."""

from __future__ import annotations

import hashlib
import pickle
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ramet.config.schema import ModelConfig
from ramet.models.tiny import make_tiny_model
from ramet.policy.batch import Row
from ramet.policy.checkpoint import Checkpoints
from ramet.policy.errors import CheckpointError
from ramet.policy.spec import PolicySpec
from ramet.policy.state import rng_state, set_rng_state
from ramet.policy.worker import PolicyWorker

MakeSpec = Callable[..., PolicySpec]
MakeRows = Callable[..., list[Row]]
MakeAdvantages = Callable[[list[Row]], Tensor]

RESUME = """
import hashlib, pickle, random, sys
from pathlib import Path
import numpy as np
import torch
from ramet.policy.worker import PolicyWorker

torch.set_num_threads(1)
with open(sys.argv[1], "rb") as file:
    spec, rows, advantages = pickle.load(file)
worker = PolicyWorker(spec)
worker.load(Path(sys.argv[2]))
for step in (3, 4):
    worker.update(rows, advantages, step=step)
digest = hashlib.sha256()
for name, tensor in worker.weights():
    digest.update(tensor.numpy().tobytes())
print(digest.hexdigest(), random.random(), np.random.rand(), torch.rand(1).item())
"""


def digest(worker: PolicyWorker) -> str:
    found = hashlib.sha256()
    for _, tensor in worker.weights():
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def test_a_resumed_run_equals_the_undisturbed_one_to_the_bit(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tmp_path: Path
) -> None:
    spec = make_spec(minibatches=2, epochs=2, kl_coef=0.1, warmup_steps=5)
    rows = make_rows(6)
    advantages = make_advantages(rows)
    worker = PolicyWorker(spec)
    for step in (1, 2):
        worker.update(rows, advantages, step=step)
    random.seed(5), np.random.seed(6), torch.manual_seed(7)
    saved = Checkpoints(tmp_path / "checkpoints", keep=1).save(2, lambda folder: worker.save(folder / "policy"))
    (tmp_path / "inputs").write_bytes(pickle.dumps((spec, rows, advantages)))
    for step in (3, 4):
        worker.update(rows, advantages, step=step)
    expected = f"{digest(worker)} {random.random()} {np.random.rand()} {torch.rand(1).item()}"
    command = [sys.executable, "-c", RESUME, str(tmp_path / "inputs"), str(saved.folder / "policy")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == expected


def test_the_count_of_bad_steps_is_part_of_the_state(make_spec: MakeSpec, tmp_path: Path) -> None:
    worker = PolicyWorker(make_spec())
    worker.bad_steps = 2
    worker.save(tmp_path)
    again = PolicyWorker(make_spec())
    again.load(tmp_path)
    assert again.bad_steps == 2


def test_the_optimisers_options_are_those_of_the_configuration(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tmp_path: Path
) -> None:
    rows = make_rows(2)
    worker = PolicyWorker(make_spec(weight_decay=0.1))
    worker.update(rows, make_advantages(rows), step=1)
    worker.save(tmp_path)
    again = PolicyWorker(make_spec(weight_decay=0.3))
    again.load(tmp_path)
    assert again.optimizer.param_groups[0]["weight_decay"] == 0.3
    found, expected = (w.optimizer.state_dict()["state"][0]["exp_avg"] for w in (again, worker))
    assert torch.equal(found, expected)


def test_generators_go_on_where_they_were() -> None:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    np.random.randn()
    state = rng_state()
    expected = (random.random(), np.random.randn(), torch.rand(1).item())
    random.seed(9), np.random.seed(9), torch.manual_seed(9)
    set_rng_state(state)
    assert (random.random(), np.random.randn(), torch.rand(1).item()) == expected


def test_a_checkpoint_of_another_model_is_refused(make_spec: MakeSpec, tmp_path: Path) -> None:
    PolicyWorker(make_spec()).save(tmp_path / "saved")
    for name, options in (("deeper", {"layers": 3, "hidden": 32}), ("wider", {"layers": 2, "hidden": 64})):
        other = make_tiny_model(tmp_path / name, heads=2, intermediate=64, **options)
        worker = PolicyWorker(make_spec(model=ModelConfig(path=str(other))))
        with pytest.raises(CheckpointError, match=r"model\.path"):
            worker.load(tmp_path / "saved")


def test_a_missing_or_torn_file_is_a_checkpoint_error(make_spec: MakeSpec, tmp_path: Path) -> None:
    worker = PolicyWorker(make_spec())
    with pytest.raises(CheckpointError, match="could not read the policy"):
        worker.load(tmp_path)
    worker.save(tmp_path)
    file = tmp_path / "rank_00000.pt"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="could not read the policy"):
        worker.load(tmp_path)


def test_another_number_of_ranks_is_refused(make_spec: MakeSpec, tmp_path: Path) -> None:
    worker = PolicyWorker(make_spec())
    worker.save(tmp_path)
    worker.world_size = 2
    with pytest.raises(CheckpointError, match="written by 1 ranks, this run has 2"):
        worker.load(tmp_path)


def test_a_write_that_fails_is_a_checkpoint_error_and_leaves_the_old_one(make_spec: MakeSpec, tmp_path: Path) -> None:
    worker, checkpoints = PolicyWorker(make_spec()), Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, worker.save)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))  # as a full disk: writes fail half-way
    try:
        with pytest.raises(CheckpointError, match="could not write the policy"):
            checkpoints.save(2, worker.save)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    found = checkpoints.newest()
    assert found is not None and found.step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
