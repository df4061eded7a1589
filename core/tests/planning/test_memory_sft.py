"""The plan of `ramet sft`: what each strategy holds and where, what is refused, and what would help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from transformers import PretrainedConfig

from ramet.config.schema import ClusterConfig, Config, Dtype, ModelConfig, SftConfig, Strategy
from ramet.planning.memory import ASIDE, CONTEXTS, CPU_PROCESS_BYTES, PROCESS_BYTES, PROCESSES, UPDATE
from ramet.planning.memory_engine import CUDA_CONTEXT
from ramet.planning.memory_policy import (
    ACTIVATIONS,
    FLIGHT,
    GRADIENTS,
    OPTIMISER,
    RESERVED,
    WEIGHTS,
    WORK,
    gathered_keys,
    shared_mask,
)
from ramet.planning.memory_report import check_memory, table
from ramet.planning.memory_sft import BUCKET, LIVE, LOADED, SftInputs, estimate_sft, plan_sft_memory, sft_state
from ramet.planning.model_shape import shape_of
from ramet.planning.placement import Machine

GIB, N = 2**30, 7_615_616_512
Build = Callable[..., SftInputs]


@pytest.fixture
def sft_7b(model_config: Callable[..., PretrainedConfig]) -> Build:
    """Qwen2.5-7B on 8 x 80 GiB; the arguments are options of `sft`."""

    def build(
        *, dtype: Dtype = Dtype.BFLOAT16, workers: int = 8, gib: int = 80, cuda: bool = True, **sft: object
    ) -> SftInputs:
        strategy = Strategy(str(sft.pop("strategy", "zero3")))
        config = Config(
            model=ModelConfig(path="model", dtype=dtype),
            sft=SftConfig(strategy=strategy, **sft),  # type: ignore[arg-type]
            cluster=ClusterConfig(policy_workers=workers),
        )
        machine = Machine(cuda=cuda, devices=8 if cuda else 1, device_bytes=gib * GIB, host_bytes=1000 * GIB)
        return SftInputs(config=config, shape=shape_of(model_config("qwen2.5-7b")), machine=machine)

    return build


@pytest.mark.parametrize(
    ("strategy", "dtype", "bytes_a_weight"),
    [
        ("none", Dtype.BFLOAT16, (4, 4, 8)),
        ("fsdp", Dtype.BFLOAT16, (4 / 8, 4 / 8, 8 / 8)),
        ("zero0", Dtype.FLOAT32, (4, 4, 8)),
        ("zero2", Dtype.BFLOAT16, (2 + 4 / 8, 2 / 8, 8 / 8)),
        ("zero2", Dtype.FLOAT32, (4 + 4 / 8, 4 / 8, 8 / 8)),
        ("zero3", Dtype.BFLOAT16, (6 / 8, 2 / 8, 8 / 8)),
        ("zero3", Dtype.FLOAT32, (8 / 8, 4 / 8, 8 / 8)),
    ],
)
def test_weights_gradients_and_optimiser_of_a_rank(
    sft_7b: Build, strategy: str, dtype: Dtype, bytes_a_weight: tuple[float, ...]
) -> None:
    inputs = sft_7b(strategy=strategy, dtype=dtype, workers=1 if strategy == "none" else 8)
    held = sft_state(inputs)
    assert list(held) == [WEIGHTS, GRADIENTS, OPTIMISER]
    assert [size / N for size in held.values()] == pytest.approx(bytes_a_weight, rel=1e-6)


def test_a_plan_counts_what_is_held_together_at_the_peak(sft_7b: Build) -> None:
    (device,) = estimate_sft(sft_7b()).devices
    parts = device.phases[UPDATE]
    assert parts[FLIGHT] == 2 * (LIVE + BUCKET)
    assert parts[ACTIVATIONS] > 28 * 2 * 3584 * 8192 and parts[WORK] > GIB
    assert (
        parts[CONTEXTS] == CUDA_CONTEXT and parts[RESERVED] == (parts[FLIGHT] + parts[ACTIVATIONS] + parts[WORK]) // 20
    )
    assert device.devices.numbers == "0 to 7"


def test_a_small_model_has_the_whole_buffer_of_gradients_on_a_gpu(sft_7b: Build) -> None:
    def flight(strategy: str, *, cuda: bool = True) -> int:
        inputs = sft_7b(strategy=strategy, dtype=Dtype.FLOAT32, cuda=cuda)
        small = replace(inputs, shape=replace(inputs.shape, layers=0, outside=((1000, 64),)))
        return estimate_sft(small).devices[0].phases[UPDATE][FLIGHT]

    assert flight("zero2") == 4 * BUCKET
    assert flight("zero3") == 4 * (BUCKET + 64_000)
    assert flight("zero0") == flight("zero2", cuda=False) == 4 * 64_000  # as large as needed; pages are not touched


def test_host_memory_holds_what_every_worker_reads_and_what_is_offloaded(sft_7b: Build) -> None:
    assert estimate_sft(sft_7b()).host_parts == {ASIDE: 0, LOADED: 8 * 2 * N, PROCESSES: 9 * PROCESS_BYTES}
    assert estimate_sft(sft_7b(strategy="fsdp")).host_parts[LOADED] == 8 * 4 * N
    alone = estimate_sft(sft_7b(strategy="none", workers=1)).host_parts
    assert alone == {ASIDE: 0, LOADED: 0, PROCESSES: PROCESS_BYTES}
    offloaded = estimate_sft(sft_7b(strategy="zero3_offload"))
    assert offloaded.host_parts[ASIDE] == pytest.approx(16 * N, rel=1e-6)
    assert not {WEIGHTS, GRADIENTS, OPTIMISER} & offloaded.devices[0].phases[UPDATE].keys()
    on_cpu = sft_7b(cuda=False, strategy="fsdp", workers=2)
    assert estimate_sft(on_cpu).host_parts == {ASIDE: 0, PROCESSES: 3 * CPU_PROCESS_BYTES}


def test_tokens_are_the_budget_or_a_ranks_share_of_a_step(sft_7b: Build) -> None:
    def tokens(**sft: object) -> int:
        return estimate_sft(sft_7b(**sft)).tokens

    assert tokens(max_tokens=4096, sequences_per_step=128) == 16384
    assert tokens(max_tokens=4096, sequences_per_step=16) == 2 * 4096
    assert tokens(max_tokens=4096, sequences_per_step=128, max_microbatch_tokens=5000) == 5000
    assert tokens(max_tokens=1000, sequences_per_step=128, cuda=False) == 2048  # larger passes are not made on a CPU


def test_rows_that_were_read_count_as_they_are_packed(sft_7b: Build) -> None:
    def planned(steps: list[list[int]] | None, **options: object) -> SftInputs:
        return replace(sft_7b(cuda=False, strategy="none", workers=1, **options), steps=steps)

    short = planned([[300] * 16, [511] * 16])
    unread = planned(None)
    assert (short.model.tokens, unread.model.tokens) == (4 * 511, 4096)
    assert estimate_sft(short).need < estimate_sft(unread).need
    assert "computes at most 2,044 tokens at once, as the rows are packed; their longest sequence has 512" in "\n".join(
        table(estimate_sft(short))
    )
    assert "tokens at once; rows were not read, and count as sft.max_tokens=4096 long" in "\n".join(
        table(estimate_sft(unread))
    )
    one_is_long = planned([[300] * 15, [300] * 15 + [4000]])
    assert (one_is_long.model.tokens, one_is_long.longest) == (4000, 4000)
    assert planned([[300] * 15, [300] * 15 + [4000]], max_tokens=4000).model.tokens == 6 * 300  # it is left out


def test_a_lower_limit_is_advised_only_if_rows_are_left(sft_7b: Build) -> None:
    inputs = sft_7b(strategy="none", workers=1, gib=16)
    for steps, advised in (([[4000] * 8], False), ([[4000, 900]], True)):
        (said,) = check_memory(estimate_sft(replace(inputs, steps=steps)))
        assert ("sft.max_tokens=2000" in said) is advised


@pytest.mark.parametrize(("strategy", "stream"), [("none", 4), ("fsdp", 2), ("zero3_offload", 2)])
def test_one_rank_of_a_strategy_computes_in_bfloat16_without_autocast(
    sft_7b: Build, strategy: str, stream: int
) -> None:
    inputs = sft_7b(strategy=strategy, workers=1)
    assert inputs.model.stream == stream
    parts = estimate_sft(inputs).devices[0].phases[UPDATE]
    assert parts[ACTIVATIONS] == 16384 * 3584 * (28 * stream + 4 + 2 * stream)
    copies = 2 * (N - 28 * (2 * 3584 + 3584 + 2 * 512) - 3584 - 152064 * 3584)  # of all linear layers and of the head
    assert (parts[FLIGHT] >= copies) == (strategy == "none")


def test_no_prefix_is_computed_once(sft_7b: Build) -> None:
    """As it is in updates on a CPU, where keys and masks of all paths would count."""
    model = sft_7b(cuda=False, strategy="none", workers=1, max_tokens=512).model
    assert gathered_keys(model) == (0, 0) and shared_mask(model) == 0


def test_what_cannot_fit_is_refused_with_what_helps_most(sft_7b: Build) -> None:
    (said,) = check_memory(estimate_sft(sft_7b(gib=16)))
    assert said == (
        "memory: cuda 0 to 7 (policy) would need 21.6 GiB in the phase 'update', and has 16.0 GiB (optimiser 7.1, "
        "weights 5.3, gathered weights 2.8, working memory 2.0, gradients 1.8, activations 1.8, CUDA contexts 0.500, "
        "reserved and unused 0.328); what helps most, each by itself: sft.strategy=zero3_offload (7.4 GiB), "
        "sft.lora_rank=32 (9.3 GiB), sft.max_tokens=2048 (21.3 GiB)"
    )
    (said,) = check_memory(estimate_sft(sft_7b(strategy="none", workers=1)))
    assert "sft.strategy=fsdp cluster.policy_workers=8 (25.1 GiB), " in said and "sft.lora_rank=32 (" in said
    assert said.endswith(
        "sft.max_microbatch_tokens=8192 (135.3 GiB); 7 of 8 GPUs would be idle: with sft.strategy=fsdp "
        "cluster.policy_workers takes more than one"
    )


@pytest.mark.parametrize(("strategy", "dtype"), [("zero0", Dtype.FLOAT32), ("zero2", Dtype.FLOAT32)])
def test_advice_is_what_the_strategy_allows(sft_7b: Build, strategy: str, dtype: Dtype) -> None:
    (said,) = check_memory(estimate_sft(sft_7b(strategy=strategy, dtype=dtype, gib=20, workers=4)))
    assert ("model.dtype=bfloat16" in said.partition("; together")[0]) == (strategy != "zero0")
    assert "sft.strategy=zero3_offload (" in said and "4 of 8 GPUs " in said


def test_a_host_that_is_too_small_for_what_workers_read_is_refused(sft_7b: Build) -> None:
    inputs = sft_7b()
    small = replace(inputs, machine=replace(inputs.machine, host_bytes=100 * GIB))
    (said,) = check_memory(estimate_sft(small))
    assert said.startswith("memory: host memory: 149.5 GiB would be needed, and there are 100.0 GiB; ")


def test_a_model_without_shapes_has_no_plan() -> None:
    plan = plan_sft_memory(Config(model=ModelConfig(path="nowhere")), Machine(cuda=False, devices=1, device_bytes=GIB))
    assert isinstance(plan, str) and plan.startswith("not estimated: model.path: ")
    assert table(plan) == [plan]
