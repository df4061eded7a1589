"""Problems of a policy's configuration are reported before anything starts, all at once."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from ramet.config.schema import (
    Attention,
    ClusterConfig,
    Config,
    Dtype,
    MinibatchOf,
    ModelConfig,
    Offload,
    PolicyConfig,
    SharePrefixes,
)
from ramet.models.attention import attention_for
from ramet.policy.check import check_policy, shares_in_words
from ramet.policy.shared_attention import shares_prefixes


def config(
    tiny: Path, policy: PolicyConfig, workers: int = 1, device: str = "cpu", address: str | None = None
) -> Config:
    return Config(
        model=ModelConfig(path=str(tiny), device=device),
        policy=policy,
        cluster=ClusterConfig(policy_workers=workers, address=address),
    )


def test_the_defaults_are_no_problem(tiny: Path) -> None:
    assert check_policy(config(tiny, PolicyConfig())) == []
    assert check_policy(config(tiny, PolicyConfig(sequence_parallel=2), workers=4)) == []
    assert check_policy(config(tiny, PolicyConfig(sequence_parallel=2, replicas=2), workers=4)) == []


@pytest.mark.parametrize("offload", [Offload.OPTIMIZER, Offload.ALL])
def test_offload_is_for_gpus(tiny: Path, offload: Offload) -> None:
    [problem] = check_policy(config(tiny, PolicyConfig(offload=offload), workers=2))
    assert problem.startswith(f"policy.offload={offload}: moves GPU memory") and "allowed here: none" in problem
    assert check_policy(config(tiny, PolicyConfig(offload=offload), workers=2, device="cuda")) == []
    elsewhere = config(tiny, PolicyConfig(offload=offload), workers=2, device="auto", address="auto")
    assert check_policy(elsewhere) == []


def test_parameters_wait_in_host_memory_only_if_they_are_sharded(tiny: Path) -> None:
    [problem] = check_policy(config(tiny, PolicyConfig(offload=Offload.ALL), device="cuda"))
    assert "needs sharded weights" in problem and "none, optimizer" in problem
    assert check_policy(config(tiny, PolicyConfig(offload=Offload.OPTIMIZER), device="cuda")) == []


def test_blocks_between_checkpoints_are_counted_from_one_on(tiny: Path) -> None:
    [problem] = check_policy(config(tiny, PolicyConfig(activation_checkpointing=-1)))
    assert problem.startswith("policy.activation_checkpointing=-1: must be true, false or a number of blocks")


def test_a_mixture_of_experts_is_not_trained(tmp_path: Path) -> None:
    mixture = {"model_type": "qwen3_moe", "num_experts": 4, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(mixture))
    for policy in (PolicyConfig(), PolicyConfig(lora_rank=8)):
        problem = check_policy(config(tmp_path, policy))[0]
        assert problem.startswith(
            "model.path: the model (qwen3_moe) is a mixture of experts, and those are not trained"
        )
        for missing in (
            "loading by shards",
            "multiplied in groups",
            "LoRA on experts",
            "replay of the engine's routing",
        ):
            assert missing in problem
    (tmp_path / "config.json").write_text(json.dumps({**mixture, "num_experts": 1}))
    assert "mixture" not in "".join(check_policy(config(tmp_path, PolicyConfig())))


def test_several_ranks_cannot_have_one_device(tiny: Path) -> None:
    [problem] = check_policy(config(tiny, PolicyConfig(), workers=2, device="cuda:1"))
    assert "model.device='cuda:1': every one of the 2 policy workers takes its own device" in problem
    assert check_policy(config(tiny, PolicyConfig(), device="cuda:1")) == []


def test_ranks_that_do_not_fit_the_sequences_are_named_with_all_else(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "peft" else find(name, *more))
    policy = PolicyConfig(sequence_parallel=3, lora_rank=4, offload=Offload.ALL)
    problems = "\n".join(check_policy(config(tiny, policy, workers=4)))
    assert "policy.offload=all" in problems
    assert "cluster.policy_workers=4 is not a multiple of it" in problems
    assert re.search(r"policy\.sequence_parallel=3 .* 2 attention heads", problems)
    assert re.search(r"policy\.lora_rank: .*\bpeft\b", problems)


@pytest.mark.parametrize(
    ("replicas", "shared_by", "workers", "problem"),
    [
        (2, 1, 1, "over as many of the cluster.policy_workers=1 ranks; allowed: 1"),
        (3, 1, 16, "over as many of the cluster.policy_workers=16 ranks; allowed: 1, 2, 4, 8, 16"),
        (4, 2, 4, "over as many of the cluster.policy_workers=4 ranks, in full groups of policy.sequence_parallel=2; "
         "allowed: 1, 2"),
    ],
)  # fmt: skip
def test_replicas_have_as_many_ranks_each(
    tiny: Path, replicas: int, shared_by: int, workers: int, problem: str
) -> None:
    found = config(tiny, PolicyConfig(replicas=replicas, sequence_parallel=shared_by), workers)
    assert check_policy(found) == [f"policy.replicas={replicas}: each copy of the weights is sharded {problem}"]


def test_a_model_that_cannot_share_prefixes_is_named_before_the_start(tiny: Path) -> None:
    always = config(tiny, PolicyConfig(share_prefixes=SharePrefixes.ALWAYS))
    assert check_policy(always) == []
    always.model.attention = Attention.EAGER
    assert check_policy(always) == [
        "policy.share_prefixes=always: not with model.attention=eager; allowed: auto, sdpa, flash_attention_2, varlen, "
        "flex"
    ]
    always.policy.share_prefixes = SharePrefixes.AUTO
    assert check_policy(always) == []


@pytest.mark.parametrize(
    ("variable", "value", "engine", "needs"),
    [
        ("TORCHDYNAMO_DISABLE", "1", "torch", "TORCHDYNAMO_DISABLE=1 to be unset"),
        ("CXX", "no-such-compiler", "torch", "a C++ compiler instead of 'no-such-compiler'"),
        ("CXX", "python3", "vllm", "cluster=ray: on a CPU engine=vllm sets TORCHDYNAMO_DISABLE=1"),
    ],
)
def test_compilation_that_would_not_happen_is_named_before_the_start(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, engine: str, needs: str
) -> None:
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)  # a test of vLLM's may have set it in this process
    monkeypatch.setenv("CXX", "python3")  # any program
    found = config(tiny, PolicyConfig(compile=True))
    assert check_policy(found) == []
    monkeypatch.setenv(variable, value)
    found.engine.name = engine
    [problem] = check_policy(found)
    assert problem.startswith(f"policy.compile=true: needs {needs}")
    found.policy.compile = False
    assert check_policy(found) == []


def test_an_attention_that_cannot_run_is_named_before_the_start_and_left_to_another_machine(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = config(tiny, PolicyConfig())
    found.model.attention, found.model.device = Attention.FLEX, "auto"
    [problem] = check_policy(found)
    assert problem.startswith("model.attention: flex ")
    assert check_policy(found, elsewhere=True) == []
    found.cluster.address = "auto"
    assert check_policy(found) == []


def test_auto_shares_prefixes_on_cuda_where_attention_is_varlen(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, described, cuda = config(tiny, PolicyConfig()), AutoConfig.from_pretrained(tiny), torch.device("cuda")
    found.model.dtype, found.model.device = Dtype.BFLOAT16, "cuda"
    for flash in (False, True):
        monkeypatch.setattr("ramet.models.attention.is_flash_attn_2_available", lambda flash=flash: flash)
        described._attn_implementation = attention_for(found.model, cuda, described)
        shares = shares_prefixes(SharePrefixes.AUTO, described, cuda)
        assert shares is not flash
        assert shares_in_words(found, cuda=True).startswith("computed once") is shares


@pytest.mark.parametrize(
    ("share", "attention", "cuda", "words"),
    [
        ("auto", "auto", False, "computed once in steps with under 85% unique tokens; 81% of the tokens of 4 rollouts"),
        (
            "auto",
            "sdpa",
            True,
            "computed as often as they occur (policy.share_prefixes=auto is for sdpa on a CPU, varlen on CUDA); "
            "policy.share_prefixes=always computes them once: 81% of the tokens of 4 rollouts of full length without",
        ),
        ("auto", "varlen", True, "computed once in steps with under 85% unique tokens; 81% of the tokens of 4"),
        (
            "auto",
            "eager",
            False,
            "computed as often as they occur (policy.share_prefixes=auto is for sdpa on a CPU, varlen on CUDA)",
        ),
        ("always", "varlen", True, "computed once; 81% of the tokens of 4 rollouts of full length without forks are"),
        (
            "always",
            "flash_attention_2",
            True,
            "computed once, by SDPA with masks instead of flash-attention (model.attention=varlen and flex need none); "
            "81% of",
        ),
        ("never", "auto", False, ""),
    ],
)
def test_the_plan_says_whether_prefixes_are_computed_once(
    tiny: Path, share: str, attention: str, cuda: bool, words: str
) -> None:
    found = config(tiny, PolicyConfig(share_prefixes=SharePrefixes(share)))
    found.model.attention = Attention(attention)
    found.data.max_prompt_tokens, found.rollout.max_response_tokens, found.rollout.group_size = 10, 30, 4
    text = shares_in_words(found, cuda=cuda)
    assert text.startswith(words) and bool(text) == bool(words)
    found.train.minibatches, found.train.minibatch_of = 2, MinibatchOf.ROLLOUTS
    parted = ", but train.minibatch_of=rollouts parts groups, so updates share little"
    assert shares_in_words(found, cuda=cuda) == (f"{text}{parted}" if "of full length" in text else text)
