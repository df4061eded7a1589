"""How `sft.strategy` becomes settings of DeepSpeed and FSDP2, and its requirements on this machine.

Both run through `transformers.Trainer`, on GPUs with NCCL and on a CPU with gloo. All strategies take torch's AdamW and
Trainer's groups of weights, so they train the same model; only a rank's parts differ.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from transformers import TrainingArguments

from ramet.config.schema import Config, Dtype, Strategy
from ramet.errors import ConfigError, MissingHere
from ramet.models.loading import resolve_device
from ramet.planning.placement import Machine
from ramet.sft.world import World, missing_variables

STAGES = {Strategy.ZERO0: 0, Strategy.ZERO2: 2, Strategy.ZERO3: 3, Strategy.ZERO3_OFFLOAD: 3}  # of ZeRO
SPREAD = "zero0, zero2, zero3, zero3_offload (GPUs only), fsdp"


def check_strategy(config: Config, launched: World | None, machine: Machine | None = None) -> list[str]:
    """Why these processes cannot train with this strategy. `launched`: this process as a rank of torchrun, if it is.
    `machine`: the one that the training is planned for, if that is another.
    """
    problems: list[str] = []
    if config.cluster.name != "local":
        problems.append(
            f"cluster.name={config.cluster.name}: `ramet sft` starts its processes on this machine itself; set "
            "cluster.name=local, and for several nodes start it with torchrun (docs/sft.md)"
        )
    problems += _check_workers(config, launched)
    if config.sft.strategy in STAGES and importlib.util.find_spec("deepspeed") is None:
        problem = (
            f"sft.strategy={config.sft.strategy}: needs the package deepspeed; install it with: pip install "
            "'ramet[deepspeed]', or choose sft.strategy=fsdp"
        )
        problems.append(MissingHere(problem, missing="DeepSpeed", unchecked="its version"))
    if config.sft.strategy is Strategy.ZERO0 and config.model.dtype is not Dtype.FLOAT32:
        problems.append(
            f"sft.strategy=zero0: only with model.dtype=float32, got {config.model.dtype}, in which DeepSpeed trains "
            "worse without shards than with them; use zero2"
        )
    if config.sft.strategy is not Strategy.NONE:
        problems += _check_devices(config, launched) if machine is None else _check_machine(config, machine)
    return problems


def _check_machine(config: Config, machine: Machine) -> list[str]:
    workers = config.cluster.policy_workers
    if machine.devices is None or workers <= machine.devices:
        return []
    return [f"cluster.policy_workers={workers}: each takes its own GPU, and --on {machine.written} has fewer"]


def _check_workers(config: Config, launched: World | None) -> list[str]:
    workers, strategy = config.cluster.policy_workers, config.sft.strategy
    if launched is None:
        if strategy is Strategy.NONE and workers > 1:
            return [
                f"sft.strategy=none: trains in one process, but cluster.policy_workers={workers}; allowed with "
                f"several: {SPREAD}"
            ]
        return []
    missing = missing_variables()
    if missing:
        return [f"WORLD_SIZE={launched.size}: the launcher of this process did not set {', '.join(missing)}"]
    if strategy is Strategy.NONE:
        return [
            f"sft.strategy=none: trains in one process, but WORLD_SIZE={launched.size}; allowed with several: {SPREAD}"
        ]
    if workers != launched.size:
        return [f"cluster.policy_workers={workers}: but WORLD_SIZE={launched.size} processes were started; set it so"]
    return []


def _check_devices(config: Config, launched: World | None) -> list[str]:
    try:
        device = resolve_device(config.model)
    except ConfigError:
        return []  # the check of the model reports it
    if device.type == "cpu":
        if config.sft.strategy is Strategy.ZERO3_OFFLOAD:
            return ["sft.strategy=zero3_offload: for GPUs only, and this training runs on the CPU; use zero3 or fsdp"]
        return []
    if device.index is not None:
        return [f"model.device={config.model.device}: each rank takes its own GPU; set model.device=cuda"]
    here = config.cluster.policy_workers if launched is None else launched.local_size
    if here > torch.cuda.device_count():
        return [f"cluster.policy_workers={config.cluster.policy_workers}: {here} on this node, which has "
                f"{torch.cuda.device_count()} GPUs"]  # fmt: skip
    return []


def prepare_process(config: Config) -> None:
    """Set what DeepSpeed must find before it is imported or begins."""
    if resolve_device(config.model).type != "cpu":
        return
    os.environ["DS_ACCELERATOR"] = "cpu"  # accelerate imports DeepSpeed wherever it is installed
    if config.sft.strategy in STAGES:
        import deepspeed.ops

        # Its shared-memory all-reduce for CPUs is C++ that it would compile now, for a minute; gloo does the same.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def deepspeed_config(strategy: Strategy) -> dict[str, Any] | None:
    """DeepSpeed's own settings, None if it is not used. Trainer fills in `auto` values."""
    if strategy not in STAGES:
        return None
    stage = STAGES[strategy]
    zero: dict[str, Any] = {"stage": stage}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True  # whatever the dtype, in spite of its name
    offload = strategy is Strategy.ZERO3_OFFLOAD
    if offload:
        zero |= {"offload_optimizer": {"device": "cpu", "pin_memory": True},
                 "offload_param": {"device": "cpu", "pin_memory": True}}  # fmt: skip
    return {
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_allow_untested_optimizer": True,  # it does not list torch's AdamW
        "zero_force_ds_cpu_optimizer": offload,  # its AdamW for CPUs compiles C++, worth it only with offload
        "steps_per_print": 10**9,
    }


def fsdp_config(strategy: Strategy) -> dict[str, Any] | None:
    """Accelerate's settings of FSDP2, None if it is not used. Blocks are sharded one by one, as in ZeRO-3."""
    return {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"} if strategy is Strategy.FSDP else None


def finish_fsdp(arguments: TrainingArguments) -> None:
    """Set what FSDP2 needs after Trainer's arguments, which set up the devices, and before Trainer itself."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if arguments.bf16:  # accelerate's own policy would also reduce gradients, and return the loss, in bfloat16
        arguments.fsdp_plugin_args["mixed_precision_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    # accelerate 1.15 shards only on the devices of a list, from which CPUs are missing, and would silently replicate
    # there. FSDP2 itself runs on a CPU with gloo.
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
