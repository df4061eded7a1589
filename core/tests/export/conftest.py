"""A tiny base model, a run directory of a policy that differs from it, and the same policy as verl's shards."""

from __future__ import annotations

import dataclasses
import json
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, PreTrainedModel

from ramet.models.tiny import make_tiny_model
from ramet.policy.checkpoint.state import Progress, stage_state, write_state
from ramet.policy.checkpoint.store import Checkpoints
from ramet.policy.host_memory import HostBuffers
from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.runs.manifest import Manifest, write_manifest
from ramet.types import Origin, Rollout, Segment, SegmentKind, StopReason, Task, user_prompt

CONFIG = """
model:
  path: {path}
  dtype: float32
  device: cpu
rollout:
  temperature: 0.7
"""


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("base"), hidden=32, layers=2, heads=2, intermediate=60)
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_sample": True, "top_p": 0.9}))
    return folder


@pytest.fixture(scope="session")
def policy(base: Path) -> PreTrainedModel:
    """Every weight differs from the base's."""
    model = AutoModelForCausalLM.from_pretrained(base)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(scope="session")
def pristine_run(tmp_path_factory: pytest.TempPathFactory, base: Path, policy: PreTrainedModel) -> Path:
    """Two checkpoints: step 1 is the base, step 2 the policy; rollouts of step 2."""
    run = tmp_path_factory.mktemp("run")
    (run / "config.yaml").write_text(CONFIG.format(path=base))
    manifest = Manifest(
        job="train", seed=1, deterministic=False, resume_level="A", git=None, versions={}, plugins=[], model=None
    )
    write_manifest(run / "manifest.json", manifest)
    checkpoints = Checkpoints(run / "checkpoints", keep=2)
    for step, model in [(1, AutoModelForCausalLM.from_pretrained(base)), (2, policy)]:
        optimizer = torch.optim.AdamW(model.parameters())
        checkpoints.save(step, lambda folder, m=model, o=optimizer: write(folder, m, o))
    write_records(run / "rollouts" / "step_000002.jsonl.gz", [GroupRecord(step=2, group=group())])
    return run


def write(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """What one rank of the policy writes."""
    write_state(folder, stage_state(model, optimizer, Progress(step=1), HostBuffers(pin=False), rank=0, world_size=1))


@pytest.fixture
def run(pristine_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine_run, tmp_path / "run"))


def group() -> ScoredGroup:
    task = Task(id="t", prompt=user_prompt("?"))
    prompt = Segment(
        origin=Origin.INSERTED, kind=SegmentKind.PROMPT, turn=0, text="p", token_ids=array("i", [258, 63, 257])
    )
    members = []
    for i in range(6):
        turn = Segment(
            origin=Origin.SAMPLED,
            kind=SegmentKind.TURN,
            turn=0,
            text="s",
            token_ids=array("i", [65 + i, 70, 71, 257]),
            logprobs=array("f", [-1.0] * 4),
            policy_version=1,
        )
        rollout = Rollout(id=str(i), task=task, segments=(prompt, turn), stop=StopReason.ANSWER)
        members.append(ScoredRollout(rollout=rollout, reward=float(i % 2)))
    return ScoredGroup(task=task, rollouts=tuple(members))


class Mesh:
    """A mesh of this process's imagination: rank after rank, without other processes."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.names = ("fsdp",) if len(shape) == 1 else ("ddp", "fsdp")
        self.world_size = int(torch.tensor(shape).prod())

    def shards(self, tensors: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
        dist.init_process_group("fake", rank=rank, world_size=self.world_size, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", self.shape, mesh_dim_names=self.names)
            placements = [Replicate()] * (len(self.shape) - 1) + [Shard(0)]
            return {name: self._shard(tensor, mesh, placements, rank) for name, tensor in tensors.items()}
        finally:
            dist.destroy_process_group()

    def _shard(self, whole: Tensor, mesh: dist.DeviceMesh, placements: list[Replicate | Shard], rank: int) -> DTensor:
        pieces = whole.chunk(self.shape[-1])
        i = rank % self.shape[-1]
        local = pieces[i].clone() if i < len(pieces) else whole[:0]
        return DTensor.from_local(
            local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.contiguous().stride()
        )


@pytest.fixture
def make_shards(tmp_path: Path, base: Path, policy: PreTrainedModel) -> Callable[..., Path]:
    """A folder as verl leaves it: shards of the policy on a mesh of this shape, configuration and tokenizer."""

    def build(*shape: int, tensors: dict[str, Tensor] | None = None) -> Path:
        folder = tmp_path / "actor"
        folder.mkdir()
        mesh = Mesh(shape)
        tensors = tensors if tensors is not None else dict(policy.state_dict())
        for rank in range(mesh.world_size):
            torch.save(mesh.shards(tensors, rank), folder / f"model_world_size_{mesh.world_size}_rank_{rank}.pt")
        shutil.copytree(base, folder / "huggingface", ignore=shutil.ignore_patterns("*.safetensors"))
        return folder

    return build


@pytest.fixture
def set_job() -> Callable[[Path, str], None]:
    """Make a run directory one of another job."""

    def change(run: Path, job: str) -> None:
        from ramet.runs.manifest import read_manifest

        file = run / "manifest.json"
        write_manifest(file, dataclasses.replace(read_manifest(file), job=job))

    return change
