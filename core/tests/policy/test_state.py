"""A resumed worker goes on to the bit."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata

from ramet.config.schema import ModelConfig
from ramet.models.tiny import make_tiny_model
from ramet.policy import model_trainer
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.checkpoint.dcp import read_contents
from ramet.policy.checkpoint.state import Staged, rng_state, saved_weights, set_rng_state
from ramet.policy.checkpoint.store import Checkpoints
from ramet.policy.errors import CheckpointError
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec

MakeSpec = Callable[..., PolicySpec]
MakeRows = Callable[..., list[Row]]
MakeAdvantages = Callable[[list[Row]], Tensor]

RESUME = """
import hashlib, pickle, random, sys
from pathlib import Path
import numpy as np
import torch
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank

torch.set_num_threads(1)
with open(sys.argv[1], "rb") as file:
    spec, rows, advantages = pickle.load(file)
worker = PolicyRank(spec)
worker.load(Path(sys.argv[2]))
for step in (3, 4):
    worker.update(TrainBatch(rows=rows).with_advantages(advantages), step)
digest = hashlib.sha256()
for name, tensor in worker.weights():
    digest.update(tensor.numpy().tobytes())
print(digest.hexdigest(), random.random(), np.random.rand(), torch.rand(1).item())
"""


def save(worker: PolicyRank, folder: Path) -> None:
    worker.stage()
    worker.write_staged(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def digest(worker: PolicyRank) -> str:
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
    worker = PolicyRank(spec)
    for step in (1, 2):
        worker.update(TrainBatch(rows=rows).with_advantages(advantages), step)
    random.seed(5), np.random.seed(6), torch.manual_seed(7)
    saved = Checkpoints(tmp_path / "checkpoints", keep=1).save(2, lambda folder: save(worker, folder / "policy"))
    (tmp_path / "inputs").write_bytes(pickle.dumps((spec, rows, advantages)))
    for step in (3, 4):
        worker.update(TrainBatch(rows=rows).with_advantages(advantages), step)
    expected = f"{digest(worker)} {random.random()} {np.random.rand()} {torch.rand(1).item()}"
    command = [sys.executable, "-c", RESUME, str(tmp_path / "inputs"), str(saved.folder / "policy")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == expected


def test_the_count_of_bad_steps_is_part_of_the_state(make_spec: MakeSpec, tmp_path: Path) -> None:
    worker = PolicyRank(make_spec())
    worker.policy.bad_steps = 2
    save(worker, tmp_path)
    again = PolicyRank(make_spec())
    again.load(tmp_path)
    assert again.policy.bad_steps == 2


def test_the_optimisers_options_are_those_of_the_configuration(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tmp_path: Path
) -> None:
    rows = make_rows(2)
    worker = PolicyRank(make_spec(weight_decay=0.1))
    worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    save(worker, tmp_path)
    again = PolicyRank(make_spec(weight_decay=0.3))
    again.load(tmp_path)
    assert again.policy.optimizer.param_groups[0]["weight_decay"] == 0.3
    found, expected = (w.policy.optimizer.state_dict()["state"][0]["exp_avg"] for w in (again, worker))
    assert torch.equal(found, expected)


def test_the_gradient_is_clipped_to_the_norm_of_the_configuration(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages
) -> None:
    rows = make_rows(2)
    worker = PolicyRank(make_spec(grad_clip=0.001))
    metrics = worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    moments = [state["exp_avg"] for state in worker.policy.optimizer.state_dict()["state"].values()]
    assert metrics["train/grad_norm"] > 0.001  # the norm before
    assert torch.stack([moment.norm() for moment in moments]).norm().item() == pytest.approx(0.1 * 0.001, rel=1e-3)


def test_generators_go_on_where_they_were() -> None:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    np.random.randn()
    state = rng_state()
    expected = (random.random(), np.random.randn(), torch.rand(1).item())
    random.seed(9), np.random.seed(9), torch.manual_seed(9)
    set_rng_state(state)
    assert (random.random(), np.random.randn(), torch.rand(1).item()) == expected


def test_a_process_that_sees_fewer_gpus_than_the_one_before_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank of a machine of eight GPUs, and then of one; torch's own functions with host generators."""
    seen = tuple(torch.Generator().manual_seed(i) for i in range(8))
    saved = {**rng_state(), "cuda": [one.get_state() for one in seen]}
    now = torch.Generator().manual_seed(99)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.default_generators", (now,))
    monkeypatch.setattr("torch.cuda.random._lazy_call", lambda call, **_: call())
    set_rng_state(saved)
    assert torch.rand(3, generator=now).equal(torch.rand(3, generator=seen[0]))


def test_a_checkpoint_of_another_model_is_refused(make_spec: MakeSpec, tmp_path: Path) -> None:
    save(PolicyRank(make_spec()), tmp_path / "saved")
    for name, options in (("deeper", {"layers": 3, "hidden": 32}), ("wider", {"layers": 2, "hidden": 64})):
        other = make_tiny_model(tmp_path / name, heads=2, intermediate=64, **options)
        worker = PolicyRank(make_spec(model=ModelConfig(path=str(other))))
        with pytest.raises(CheckpointError, match=r"model\.path"):
            worker.load(tmp_path / "saved")


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "deep/file", ".."])
def test_a_checkpoint_points_to_no_file_outside_its_folder(make_spec: MakeSpec, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    save(PolicyRank(make_spec()), folder)
    with (folder / ".metadata").open("rb") as file:
        found = pickle.load(file)
    for info in found.storage_data.values():
        info.relative_path = name
    (folder / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(CheckpointError) as caught:
        saved_weights(folder)
    assert str(caught.value) == (
        f"{folder}: could not read the policy: .metadata: names {name!r}, which is not a file of the folder itself"
    )


@pytest.mark.parametrize("name", ["rank_00000.pt", "__0_0.distcp", ".metadata"])
def test_a_missing_or_damaged_file_is_a_checkpoint_error_that_names_it(
    make_spec: MakeSpec, tmp_path: Path, name: str
) -> None:
    worker = PolicyRank(make_spec())
    with pytest.raises(CheckpointError, match="could not read the policy"):
        worker.load(tmp_path)
    save(worker, tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:100])
    with pytest.raises(CheckpointError, match=rf"{tmp_path}: could not read the policy: .*({name}|rank 0)"):
        worker.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=rf"could not read the policy: .*{name}"):
        worker.load(tmp_path)


def test_a_table_of_contents_that_would_run_code_is_refused(make_spec: MakeSpec, tmp_path: Path) -> None:
    worker = PolicyRank(make_spec())
    save(worker, tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
    with pytest.raises(CheckpointError, match=r"\.metadata: names .*\.system"):
        worker.load(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"no": "table"}))
    with pytest.raises(CheckpointError, match="contains dict, not a table of contents"):
        worker.load(tmp_path)
    assert not (tmp_path / "ran").exists()


class OldPickler(pickle.Pickler):
    """As Python 3.11.2 writes: a member of an enumeration is a call of `getattr`."""

    def reducer_override(self, written: object) -> Any:
        return (getattr, (type(written), written.name)) if isinstance(written, Enum) else NotImplemented


def test_a_table_of_contents_of_an_older_python_is_read(make_spec: MakeSpec, tmp_path: Path) -> None:
    worker = PolicyRank(make_spec())
    save(worker, tmp_path)
    contents = read_contents(tmp_path)
    with (tmp_path / ".metadata").open("wb") as file:
        OldPickler(file).dump(contents)
    assert b"getattr" in (tmp_path / ".metadata").read_bytes()
    assert read_contents(tmp_path) == contents
    worker.load(tmp_path)


def test_nothing_else_of_a_table_of_contents_is_looked_up_by_name(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Lookup()))
    with pytest.raises(pickle.UnpicklingError, match=r"reads '__init__' of .*Metadata"):
        read_contents(tmp_path)


class Lookup:
    def __reduce__(self) -> tuple[object, tuple[type, str]]:
        return getattr, (Metadata, "__init__")


class Touch:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.file}",)


def test_two_saves_of_one_state_are_the_same_bytes(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tmp_path: Path
) -> None:
    rows = make_rows(2)
    worker, again = PolicyRank(make_spec()), PolicyRank(make_spec())
    worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    save(worker, tmp_path / "one")
    again.load(tmp_path / "one")
    save(again, tmp_path / "two")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [".hashes_00000", ".metadata", "__0_0.distcp", "rank_00000.pt"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_what_is_staged_is_the_state_of_then(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tmp_path: Path
) -> None:
    rows = make_rows(4)
    worker = PolicyRank(make_spec())
    worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    save(worker, tmp_path / "then")
    worker.stage()
    worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 2)
    worker.write_staged(tmp_path / "staged")
    assert contents(tmp_path / "staged") == contents(tmp_path / "then")
    with pytest.raises(RuntimeError, match="nothing is staged"):
        worker.write_staged(tmp_path / "again")


def test_a_save_that_is_waited_for_needs_no_copy_and_writes_the_same(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tmp_path: Path
) -> None:
    rows, worker = make_rows(4), PolicyRank(make_spec())
    worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    worker.stage(True)
    staged = worker.policy._staged
    assert staged is not None
    own = {parameter.data_ptr() for parameter in worker.model.parameters()}
    assert own <= {tensor.data_ptr() for tensor in staged.tensors.values()}
    worker.write_staged(tmp_path / "waited")
    save(worker, tmp_path / "copied")
    assert contents(tmp_path / "waited") == contents(tmp_path / "copied")


def test_there_is_one_copy_for_all_saves_and_none_is_made_while_it_is_written(
    make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = PolicyRank(make_spec())

    def staged() -> dict[str, int]:
        worker.stage()
        found = worker.policy._staged
        assert found is not None
        return {name: tensor.data_ptr() for name, tensor in found.tensors.items()}

    assert staged() == staged()

    def writing(folder: Path, found: Staged, group: object) -> None:
        with pytest.raises(RuntimeError) as error:
            worker.stage()
        assert str(error.value) == "the copy before is still being written; wait until write_staged() is done"
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(model_trainer, "write_state", writing)
    with pytest.raises(CheckpointError):
        worker.write_staged(tmp_path)
    worker.stage()


def test_adapters_are_saved_without_the_weights_under_them(
    make_spec: MakeSpec, make_rows: MakeRows, make_advantages: MakeAdvantages, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    rows = make_rows(4)
    worker, again = PolicyRank(make_spec(lora_rank=2)), PolicyRank(make_spec(lora_rank=2, seed=9))
    worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
    save(worker, tmp_path)
    assert all("lora_" in name for name in saved_weights(tmp_path))
    again.load(tmp_path)
    assert digest(again) == digest(worker)
    with pytest.raises(CheckpointError, match="contains another model"):
        PolicyRank(make_spec()).load(tmp_path)


def test_other_ranks_than_those_that_wrote_go_on_with_generators_of_their_own(
    make_spec: MakeSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = PolicyRank(make_spec())
    worker.policy.step = 7
    save(worker, tmp_path)
    own = torch.load(tmp_path / "rank_00000.pt", weights_only=True)
    torch.save(own | {"world_size": 2}, tmp_path / "rank_00000.pt")
    drawn = []
    for seed in (1, 1, 2):
        with caplog.at_level(logging.INFO, logger="ramet"):
            PolicyRank(make_spec(seed=seed)).load(tmp_path)
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1] != drawn[2]
    assert "was written by 2 policy ranks, now there are 1" in caplog.text
    assert "begin again from seed 2, step 7 and rank" in caplog.text


def test_a_write_that_fails_is_a_checkpoint_error_and_leaves_the_old_one(make_spec: MakeSpec, tmp_path: Path) -> None:
    worker, checkpoints = PolicyRank(make_spec()), Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, partial(save, worker))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))  # as a full disk: writes fail half-way
    try:
        with pytest.raises(CheckpointError, match="could not write the policy"):
            checkpoints.save(2, partial(save, worker))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    found = checkpoints.newest()
    assert found is not None and found.step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


@pytest.mark.slow  # 64 threads, 30 s of CPU
def test_a_checkpoint_of_64_ranks_is_read_by_32(tmp_path: Path) -> None:
    """FSDP2's shards, the exchange of plans by torch and the files are as with processes; only gloo is not there."""
    model = make_tiny_model(tmp_path / "tiny", hidden=32, layers=1, heads=2, intermediate=64)
    script = Path(__file__).with_name("rank_threads.py")
    command = [sys.executable, str(script), str(model), str(tmp_path / "checkpoints"), "64", "32"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[:2] == ["64", "files,"]
