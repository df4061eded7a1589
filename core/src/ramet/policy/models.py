"""The models of a policy worker: the trained one, its frozen reference and a teacher, unsharded or sharded."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.distributed import ProcessGroup
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ramet.config.schema import Dtype, ModelConfig, Offload, PolicyConfig, SharePrefixes
from ramet.errors import ConfigError
from ramet.models.attention import COMPILER_OFF, KNOWS_BORDERS
from ramet.models.loading import DTYPES, load_model, model_without_weights, resolve_device
from ramet.models.weight_files import WeightFiles
from ramet.policy.batching.packing import Cost, model_cost
from ramet.policy.distributed.sharding import read_shards, shard
from ramet.policy.distributed.ulysses import attention_name, install_ulysses
from ramet.policy.logprob_model import LogprobModel, check_head
from ramet.policy.lora import add_adapter
from ramet.policy.shared_attention import SHARED, install_shared_attention, shares_prefixes
from ramet.policy.spec import PolicySpec

logger = logging.getLogger(__name__)
HOST = torch.device("cpu")
VARIANTS = 32  # of a compiled block; torch stops at 8, and computes the others without compilation
M = TypeVar("M", bound=torch.nn.Module)


def trainable_model(spec: PolicySpec, *, world_size: int = 1, group: ProcessGroup | None = None) -> LogprobModel:
    """The policy, as `build_trainable` makes it."""
    return build_trainable(spec.model, spec.policy, LogprobModel, seed=spec.seed, world_size=world_size, group=group)


def build_trainable(
    config: ModelConfig,
    policy: PolicyConfig,
    wrap: Callable[[PreTrainedModel, ProcessGroup | None], M],
    *,
    seed: int,
    world_size: int = 1,
    group: ProcessGroup | None = None,
) -> M:
    """The model with float32 weights; with LoRA the frozen ones stay in `model.dtype`. No dropout: pi must be the
    same distribution in every pass. `group`: the ranks that share each sequence. `wrap` makes the module whose forward
    pass is run.

    Raises `ConfigError` for a model that cannot be loaded or trained.
    """
    sharded = world_size > 1
    model, files = _load(config, sharded=sharded)
    if policy.lora_rank:
        add_adapter(model, policy.lora_rank, seed=seed)
    elif not sharded:
        model.float()  # type: ignore[no-untyped-call]
    check_head(model)
    _disable_dropout(model)
    if policy.checkpoint_every:
        checkpoint_blocks(model, policy.checkpoint_every)
    _install_attention(model, policy.share_prefixes, resolve_device(config), group)
    wrapped = wrap(model, group)
    if policy.compile:
        compile_blocks(model)
    if sharded:
        shard(
            wrapped,
            blocks_of(model),
            resolve_device(config),
            master=torch.float32,
            compute=torch.bfloat16 if config.dtype is Dtype.BFLOAT16 else None,
            offload=policy.offload is Offload.ALL,
            replicas=policy.replicas,
        )
    if files is not None:
        device = HOST if policy.offload is Offload.ALL else resolve_device(config)
        read_shards(wrapped, model, files, device, DTYPES[config.dtype])
    return wrapped


def reference_model(spec: PolicySpec, *, world_size: int = 1, group: ProcessGroup | None = None) -> LogprobModel:
    """The weights that the run starts from, in `model.dtype`, frozen; resuming does not change them."""
    return _frozen_model(spec, spec.model, world_size=world_size, group=group)


def teacher_model(spec: PolicySpec, *, world_size: int = 1, group: ProcessGroup | None = None) -> LogprobModel:
    """The teacher, frozen, in `model.dtype`. Raises `ConfigError` for one whose logits are not its head's output."""
    assert spec.teacher is not None
    try:
        wrapped = _frozen_model(spec, spec.teacher, world_size=world_size, group=group)
        check_head(wrapped.model)
    except ConfigError as error:
        raise ConfigError(f"train.teacher: {str(error).removeprefix('model.path: ')}") from error
    return wrapped


def _frozen_model(
    spec: PolicySpec, config: ModelConfig, *, world_size: int, group: ProcessGroup | None
) -> LogprobModel:
    sharded = world_size > 1
    model, files = _load(config, sharded=sharded)
    model.requires_grad_(False)
    _install_attention(model, spec.policy.share_prefixes, resolve_device(config), group)
    wrapped = LogprobModel(model, group)
    offload = spec.policy.offload is Offload.ALL
    if sharded:
        shard(wrapped, blocks_of(model), resolve_device(config), offload=offload, replicas=spec.policy.replicas)
    if files is not None:
        device = HOST if offload else resolve_device(config)
        read_shards(wrapped, model, files, device, DTYPES[config.dtype])
    return wrapped


def _install_attention(
    model: PreTrainedModel, share: SharePrefixes, device: torch.device, group: ProcessGroup | None
) -> None:
    """Wrap the model's own attention: prefixes computed once, and around that the exchange of heads between ranks."""
    if shares_prefixes(share, model.config, device):
        install_shared_attention(model)
    if group is not None:
        install_ulysses(model, group)


def _load(config: ModelConfig, *, sharded: bool) -> tuple[PreTrainedModel, WeightFiles | None]:
    """The model. If it is to be sharded: without weights, and with the files from which each rank then reads its part.

    Every rank loads all weights of models whose files are not safetensors, or name or cut tensors otherwise than the
    model does.
    """
    if sharded and WeightFiles.are_in(Path(config.path)):
        model, files = model_without_weights(config), WeightFiles(Path(config.path))
        if files.hold({name: tuple(parameter.shape) for name, parameter in model.named_parameters()}):
            return model, files
    if sharded:
        logger.info("model.path: the files in %s are converted on loading: every rank loads all weights", config.path)
    return load_model(config, device=HOST if sharded else None), None


def blocks_of(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The transformer blocks: the modules that transformers never splits over devices."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def checkpoint_blocks(model: PreTrainedModel, every: int = 1) -> None:
    """Let every `every`-th block keep only its input, and compute the rest again in the backward pass.

    The last block is one of them only if all are: when its backward pass comes, all that others keep is still there.
    Raises `ConfigError` for a model whose blocks cannot be chosen, or has fewer.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    blocks = [block for block in blocks_of(model) if isinstance(block, GradientCheckpointingLayer)]
    if every > max(len(blocks), 1):
        raise ConfigError(
            f"policy.activation_checkpointing={every}: {type(model).__name__} has {len(blocks)} blocks that can be "
            "checkpointed one by one; allowed: true, false and at most their number"
        )
    for after, block in enumerate(reversed(blocks)):
        block.gradient_checkpointing = after % every == every - 1


def compile_blocks(model: PreTrainedModel, backend: str = "inductor") -> None:
    """torch.compile of every transformer block, in place; names of parameters stay. Before the model is sharded.

    One block is compiled, and the others, which are alike, reuse its code. Sequence lengths differ from micro-batch to
    micro-batch, so shapes are dynamic from the first call. A block is compiled again with and without gradients, for
    the first block and others, with and without a plan of prefixes, and in FSDP's first pass. Compilation happens in
    the first pass. Inductor needs Triton on CUDA, and on a CPU a C++ compiler. Raises `ConfigError` where torch would
    silently not compile.
    """
    if os.environ.get(COMPILER_OFF) == "1":
        raise ConfigError(
            f"policy.compile=true: {COMPILER_OFF}=1 switches compilation off in this process (engine=vllm sets it on a "
            "CPU); use cluster=ray, where engine and policy are apart, or leave policy.compile out"
        )
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, VARIANTS)
    for block in blocks_of(model):
        block.compile(dynamic=True, backend=backend)


def row_cost(model: PreTrainedModel, device: torch.device) -> Cost:
    """The cost of one sequence, with any attention kernel."""
    return model_cost(model.config.hidden_size, device)


def attention_cost(model: PreTrainedModel, device: torch.device) -> Cost | None:
    """Cost of attention; None for flash attention, varlen and flex, which know where sequences end (by position ids).

    Those need CUDA and are not run by the tests; the packed rows that they are given are tested.
    """
    name = attention_name(model.config).removeprefix(SHARED)
    return None if name in KNOWS_BORDERS else row_cost(model, device)


def _disable_dropout(model: PreTrainedModel) -> None:
    """Dropout is a module in some models, and in others a number that the forward pass reads (OPT: `dropout`)."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
