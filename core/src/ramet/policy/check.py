"""Problems of a policy's configuration, found before anything starts."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

from ramet.config.schema import Attention, Config, MinibatchOf, Offload, PolicyConfig, SharePrefixes
from ramet.models.attention import COMPILER_OFF, check_attention, chosen_attention, is_plain
from ramet.models.check import read_config
from ramet.models.loading import device_kind
from ramet.models.mixture import check_dense
from ramet.policy.batching.shared import WORTHWHILE
from ramet.policy.distributed.ulysses import check_ulysses
from ramet.policy.lora import check_lora
from ramet.policy.shared_attention import check_sharing, shared_by_auto, sharing_problems


def check_policy(config: Config, *, elsewhere: bool = False) -> list[str]:
    """Problems of the section `policy` with the model, the ranks and this machine. Loads no weights.

    `elsewhere`: the run is planned for GPUs of another machine.
    """
    device = _device(config, elsewhere)
    problems = check_policy_options(config.policy, device, config.cluster.policy_workers)
    if ":" in config.model.device and config.cluster.policy_workers > 1:
        problems.append(
            f"model.device={config.model.device!r}: every one of the {config.cluster.policy_workers} policy workers "
            "takes its own device; allowed with several: auto, cpu, cuda"
        )
    described = read_config(config.model)
    problems += check_dense(described)
    problems += check_attention(config.model, device=device, described=described)
    if described is not None and config.policy.sequence_parallel > 1:
        problems += check_ulysses(described, config.policy.sequence_parallel)
    if described is not None and config.policy.share_prefixes is SharePrefixes.ALWAYS:
        problems += check_sharing(described, config.model.attention)
    layers = getattr(described, "num_hidden_layers", None)
    if layers is not None and config.policy.checkpoint_every > layers:
        problems.append(
            f"policy.activation_checkpointing={config.policy.activation_checkpointing}: the model has {layers} blocks; "
            "allowed: true, false and at most their number"
        )
    if config.policy.compile:
        problems += check_compiler(config, device)
    if config.policy.lora_rank:
        problems += check_lora()
    return problems


def check_policy_options(policy: PolicyConfig, device: str | None, world_size: int) -> list[str]:
    """The problems that one rank can find by itself. `device` None: it is on another machine."""
    problems = []
    if policy.checkpoint_every < 0:
        problems.append(
            f"policy.activation_checkpointing={policy.activation_checkpointing}: must be true, false or a number of "
            "blocks, of which one is checkpointed: 2, every second"
        )
    if policy.offload is not Offload.NONE and device == "cpu":
        problems.append(
            f"policy.offload={policy.offload}: moves GPU memory to host memory, and the policy is on a CPU; "
            "allowed here: none"
        )
    elif policy.offload is Offload.ALL and world_size == 1:
        problems.append(
            "policy.offload=all: needs sharded weights, so cluster.policy_workers of at least 2; allowed with 1: none, "
            "optimizer"
        )
    if world_size % policy.sequence_parallel:
        problems.append(
            f"policy.sequence_parallel={policy.sequence_parallel}: that many ranks share each sequence, and "
            f"cluster.policy_workers={world_size} is not a multiple of it"
        )
    elif (allowed := possible_replicas(policy, world_size)) and policy.replicas not in allowed:
        sharing = f", in full groups of policy.sequence_parallel={policy.sequence_parallel}"
        problems.append(
            f"policy.replicas={policy.replicas}: each copy of the weights is sharded over as many of the "
            f"cluster.policy_workers={world_size} ranks{sharing if policy.sequence_parallel > 1 else ''}; allowed: "
            f"{', '.join(map(str, allowed))}"
        )
    return problems


def check_compiler(config: Config, device: str | None) -> list[str]:
    """The problem of `policy.compile=true` that torch would not compile here, if it would not."""
    cxx = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # as Inductor chooses it
    lacking = []
    if os.environ.get(COMPILER_OFF) == "1":
        lacking.append(f"{COMPILER_OFF}=1 to be unset")
    if device == "cpu" and shutil.which(cxx) is None:
        lacking.append(f"a C++ compiler instead of {cxx!r}, which is not found (CXX names another)")
    if device == "cpu" and config.engine.name == "vllm" and config.cluster.name == "local":
        lacking.append(f"cluster=ray: on a CPU engine=vllm sets {COMPILER_OFF}=1 in its process, the policy's own")
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        lacking.append("the package triton")
    return [f"policy.compile=true: needs {' and '.join(lacking)}; allowed here: false"] if lacking else []


def possible_replicas(policy: PolicyConfig, world_size: int) -> list[int]:
    """Numbers of replicas into which so many ranks can be cut, ascending."""
    units = world_size // policy.sequence_parallel  # groups of ranks that share sequences stay within a replica
    return [n for n in range(1, units + 1) if units % n == 0]


def _device(config: Config, elsewhere: bool) -> str | None:
    """The kind of device that the policy will have; None if only another machine can tell."""
    if config.model.device == "auto" and (elsewhere or config.cluster.address is not None):
        return None
    return device_kind(config.model)


def shares_in_words(config: Config, *, cuda: bool) -> str:
    """Whether prefixes will be computed once, and what that leaves of a group's tokens."""
    wanted, described = config.policy.share_prefixes, read_config(config.model)
    size, prompt = config.rollout.group_size, config.data.max_prompt_tokens
    response = config.rollout.max_response_tokens
    unique_share = (prompt + size * response) / (size * (prompt + response))
    group = f"{unique_share:.0%} of the tokens of {size} rollouts of full length without forks are unique"
    if config.train.minibatches > 1 and config.train.minibatch_of is MinibatchOf.ROLLOUTS:
        group += ", but train.minibatch_of=rollouts parts groups, so updates share little"
    device = "cuda" if cuda else "cpu"
    attention = chosen_attention(config.model, device, plain=described is None or is_plain(described))
    if wanted is SharePrefixes.ALWAYS:
        masked = attention is Attention.FLASH
        masks = ", by SDPA with masks instead of flash-attention (model.attention=varlen and flex need none)"
        return f"computed once{masks if masked else ''}; {group}"
    if wanted is SharePrefixes.NEVER or described is None:
        return ""
    if problems := sharing_problems(described):
        return f"computed as often as they occur: {problems[0]}"
    if not shared_by_auto(device, attention):
        could = "" if attention is Attention.EAGER else f"; policy.share_prefixes=always computes them once: {group}"
        auto = "policy.share_prefixes=auto is for sdpa on a CPU, varlen on CUDA"
        return f"computed as often as they occur ({auto}){could}"
    return f"computed once in steps with under {WORTHWHILE:.0%} unique tokens; {group}"
