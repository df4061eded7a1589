"""What one rank of a large run would hold and send, walked at true shapes with tensors that have no memory.

    python bench/walk/run.py [--experiment arpo_qwen3_32b_reasoning] [--blocks 64]

This process is rank 0 of as many ranks as the recipe has, of which none exists: process groups are torch's fake ones,
tensors have shapes and no values. The code is the policy's own: it shards the model, packs the rows, makes two
optimiser steps, stages a checkpoint and cuts the weights for the engines. torch's `MemTracker` adds up what is held.
Its peak is compared with the plan's. CUDA, NCCL and vLLM are not in it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import ramet.policy.distributed.sharding as sharding
import ramet.policy.model_trainer as model_trainer
from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.config.compose import compose
from ramet.config.schema import Config
from ramet.engines.weight_chunks import CHUNK_BYTES, grouped
from ramet.models.varlen import register
from ramet.planning.disk import checkpoint_bytes
from ramet.planning.memory import Inputs, estimate
from ramet.planning.memory_engine import ENGINE_WEIGHTS
from ramet.planning.memory_policy import GRADIENTS, OPTIMISER, WEIGHTS, TrainedModel, phases, state
from ramet.planning.model_shape import read_shape
from ramet.planning.placement import machine_of
from ramet.policy.batching.packing import MicroBatch, model_cost
from ramet.policy.batching.partition import RankLayout
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.host_memory import own_part
from ramet.policy.logprob_model import LogprobModel
from ramet.policy.lora import merged_weights
from ramet.policy.metric_accumulator import MetricAccumulator
from ramet.policy.model_trainer import ModelTrainer
from ramet.policy.models import blocks_of, checkpoint_blocks
from ramet.policy.objective import Objective
from ramet.policy.shared_attention import install_shared_attention
from ramet.policy.spec import PolicySpec
from ramet.testing.batches import root_row
from ramet.types import PolicyLoss

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
MACHINE = "8x8x80GiB"
MODELS = {  # facts of the published models' config.json
    "Qwen/Qwen3-32B": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 25600, "head_dim": 128,
        "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
}  # fmt: skip
CPU = torch.device("cpu")
GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """Bytes of rank 0, and what the plan says of the same."""

    blocks: int
    ranks: int
    replicas: int
    passes: int
    tokens: int  # of the largest micro-batch
    peak: int
    planned_peak: int
    held: dict[str, int]  # at an optimiser step: weights, gradients, optimiser
    planned: dict[str, int]
    checkpoint: int  # all ranks' parts
    planned_checkpoint: int
    chunks: int  # of weights for the engines
    largest_chunk: int
    weights: int  # all chunks
    sending: int  # the most that is held while they are cut
    engine_weights: int  # of one device of an engine, by the plan


def recipe(experiment: str, blocks: int | None, folder: Path) -> tuple[Config, Inputs]:
    """The recipe with its model's `config.json` in `folder`, of as many blocks; None: all."""
    name = compose([f"experiment={experiment}"], job="train").config.model.path
    facts = MODELS[name] | ({} if blocks is None else {"num_hidden_layers": blocks})
    (folder / "config.json").write_text(json.dumps(facts))
    config = compose([f"experiment={experiment}", f"model.path={folder}", "model.device=cpu"], job="train").config
    return config, Inputs(config=config, shape=read_shape(config.model), machine=machine_of(config, MACHINE))


@contextmanager
def fake_ranks(config: Config) -> Iterator[None]:
    """This process as rank 0 of all. A fake tensor has no number to read: 1 stands for each."""
    ranks = config.cluster.policy_workers
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    mesh = sharding.mesh_of_ranks(CPU, config.policy.replicas)
    replaced: list[tuple[Any, str, Any]] = [
        (sharding, "mesh_of_ranks", lambda *_: mesh),  # made outside of fake tensors: it is read
        (model_trainer, "host_group", lambda: None),  # gloo has no fake
        (model_trainer, "sum_over_ranks", lambda value: value),
        (model_trainer, "row_cost", lambda model, _: model_cost(model.config.hidden_size, torch.device("cuda"))),
        (MetricAccumulator, "result", lambda *_, **__: {}),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for owner, name, value in replaced:
            setattr(owner, name, value)
        FakeTensor.__float__ = lambda _: 1.0  # type: ignore[method-assign]
        yield
    finally:
        del FakeTensor.__float__
        for owner, name, value in before:
            setattr(owner, name, value)
        dist.destroy_process_group()


def rows_of(config: Config, groups: int) -> list[Row]:
    """Groups without forks, each as many unique tokens as a micro-batch takes."""
    prompt, size = config.data.max_prompt_tokens, config.rollout.group_size
    response = (config.policy.max_microbatch_tokens - prompt) // size
    return [
        root_row(np.zeros(prompt, np.int32), np.full(response, 1 + i, np.int32), id=f"{group}-{i}", group=group)
        for group in range(groups)
        for i in range(size)
    ]


def sharded_model(config: Config, inputs: Inputs) -> tuple[PreTrainedModel, LogprobModel]:
    """The policy as its rank makes it (`policy/models.py`), without values."""
    register()
    described = AutoConfig.from_pretrained(config.model.path)
    model = AutoModelForCausalLM.from_config(described, dtype=torch.float32, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    model.train()
    checkpoint_blocks(model, config.policy.checkpoint_every)
    model.config._attn_implementation = str(config.model.attention)
    install_shared_attention(model)
    module = LogprobModel(model)
    sharding.shard(
        module, blocks_of(model), CPU, master=torch.float32, compute=torch.bfloat16, replicas=config.policy.replicas
    )
    return model, module


def trainer_of(config: Config, model: PreTrainedModel, module: nn.Module) -> ModelTrainer:
    """The policy's trainer. Its optimiser's state stays here: there is no other device."""
    policy = replace(config.policy, offload=type(config.policy.offload).NONE)
    return ModelTrainer(
        module,
        model,
        name="train",
        config=config.model,
        policy=policy,
        train=config.train,
        layout=RankLayout.of(policy, rank=0, world_size=config.cluster.policy_workers),
        total_steps=config.train.steps or 1,
        seed=0,
        loss="of the walk",
        advice="",
    )


class Walk:
    """The steps of one rank, and what they hold. All inside of fake tensors."""

    def __init__(self, config: Config, inputs: Inputs) -> None:
        self.config, self.inputs = config, inputs
        self.model, module = sharded_model(config, inputs)
        self.trainer = trainer_of(config, self.model, module)
        self.tracker = FSDPMemTracker(module, self.trainer.optimizer)
        self.tracker.track_external(module, self.trainer.optimizer)
        self.tokens: list[int] = []
        self.held: dict[str, int] = {}

    def update(self) -> int:
        """Make two optimiser steps, of one and of two micro-batches on each rank. Returns the peak of the passes."""
        ranks = self.config.cluster.policy_workers
        rows = rows_of(self.config, 3 * ranks)
        first = ranks * self.config.rollout.group_size
        ones = [np.ones(len(row.response_ids), np.float32) for row in rows]
        batch = TrainBatch(rows=rows, advantages=ones, old_logprobs=ones)
        objective = self._objective(batch)
        self.trainer.optimizer_step = self._stepped(self.trainer.optimizer_step)  # type: ignore[method-assign]
        order = [range(first), range(first, len(rows))]
        with self.tracker:
            self.trainer.update(
                batch, 1, objective, MetricAccumulator(), what="update", order=order, computed=range(len(rows))
            )
        (parts,) = self.tracker.get_tracker_snapshot("peak").values()
        return int(parts["Total"])

    def _objective(self, batch: TrainBatch) -> Callable[..., Tensor]:
        spec = PolicySpec(
            model=self.config.model, policy=self.config.policy, train=self.config.train,
            policy_loss=cast(PolicyLoss, PpoClip(PpoClipConfig())), temperature=1.0,
            max_response_tokens=self.config.rollout.max_response_tokens,
            total_steps=self.config.train.steps or 1, seed=0,
        )  # fmt: skip
        objective = Objective(spec, self.trainer, batch, MetricAccumulator())

        def loss_of(micro_batch: MicroBatch, *rest: Any) -> Tensor:
            self.tracker.reset_mod_stats()  # of modules; the peak is kept
            self.tokens.append(micro_batch.n_tokens)
            return objective(micro_batch, *rest)

        return loss_of

    def _stepped(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The optimiser's step, not tracked: DTensor asks for shapes with tensors of full size, which would count."""

        def untracked(*arguments: Any, **named: Any) -> Any:
            gradients = sum(own_part(p.grad).nbytes for p in self.model.parameters() if p.grad is not None)
            with _disable_current_modes():
                outcome = step(*arguments, **named)
            moments = [value for kept in self.trainer.optimizer.state.values() for value in kept.values()]
            self.held = {
                WEIGHTS: sum(own_part(parameter).nbytes for parameter in self.model.parameters()),
                GRADIENTS: gradients,
                OPTIMISER: sum(own_part(value).nbytes for value in moments if value.dim()),
            }
            self.tracker.track_external(self.trainer.optimizer)
            return outcome

        return untracked

    def checkpoint(self) -> int:
        """Bytes of a checkpoint: this rank's part, of which each replica has all."""
        self.trainer.stage(waited_for=True)
        assert self.trainer._staged is not None
        own = sum(own_part(tensor).nbytes for tensor in self.trainer._staged.tensors.values() if tensor.dim())
        return own * self.config.cluster.policy_workers // self.config.policy.replicas

    def send(self) -> tuple[list[int], int]:
        """Bytes of each chunk for the engines, as ranks cut them that share GPUs with engines, and the most held."""
        limit = max(CHUNK_BYTES, max(2 * parameter.numel() for parameter in self.model.parameters()))
        tracker = FSDPMemTracker(self.trainer.module, self.trainer.optimizer)
        tracker.track_external(self.trainer.module, self.trainer.optimizer)
        with tracker:
            groups = grouped(merged_weights(self.model, torch.bfloat16), limit)
            chunks = [sum(tensor.nbytes for _, tensor in group) for group in groups]
        (parts,) = tracker.get_tracker_snapshot("peak").values()
        return chunks, int(parts["Total"])


def planned_peak(inputs: Inputs, side: TrainedModel) -> int:
    """Of the passes, the optimiser's state included."""
    return max(sum(parts.values()) for moment, parts in phases(side).items() if moment != "optimiser step")


def walk(experiment: str, blocks: int | None, folder: Path) -> Walked:
    """Walk a recipe with its model cut to so many blocks, and plan the same."""
    config, inputs = recipe(experiment, blocks, folder)
    ranks = config.cluster.policy_workers
    with fake_ranks(config), FakeTensorMode(allow_non_fake_inputs=True):
        one = Walk(config, inputs)
        peak = one.update()
        checkpoint, (chunks, sending) = one.checkpoint(), one.send()
    plan = estimate(inputs)
    assert plan.engine is not None
    side = TrainedModel(shape=inputs.shape, config=config, ranks=ranks, cuda=True)
    return Walked(
        blocks=inputs.shape.layers, ranks=ranks, replicas=config.policy.replicas, passes=len(one.tokens),
        tokens=max(one.tokens), peak=peak, planned_peak=planned_peak(inputs, side), held=one.held, planned=state(side),
        checkpoint=checkpoint, planned_checkpoint=checkpoint_bytes(inputs), chunks=len(chunks),
        largest_chunk=max(chunks), weights=sum(chunks), sending=sending,
        engine_weights=plan.engine.parts[ENGINE_WEIGHTS],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="arpo_qwen3_32b_reasoning")
    parser.add_argument("--blocks", type=int, help="of the model; all without it, and then results are written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        walked = walk(options.experiment, options.blocks, Path(folder))
    print(json.dumps(asdict(walked)))
    if options.blocks is None:
        from harness import write_results

        write_results("walk", {"experiment": options.experiment, "machine": MACHINE}, [asdict(walked)], {})


if __name__ == "__main__":
    main()
