"""The plan of memory: exact where it says so, the right phases, and refusals that name what to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.config.schema import ComponentConfig, Dtype, ModelConfig, Offload, PolicyConfig, TrainConfig
from ramet.engines.config import TorchEngineConfig, VllmEngineConfig
from ramet.engines.torch.cache import KVCache
from ramet.errors import ConfigError
from ramet.models.tiny import make_tiny_model, tiny_model
from ramet.planning.memory import (
    ASIDE,
    ASLEEP,
    CONTEXTS,
    CPU_PROCESS_BYTES,
    EXCHANGE,
    PROCESS_BYTES,
    PROCESSES,
    ROLLOUTS,
    STORED,
    UPDATE,
    Inputs,
    critic_shape,
    estimate,
)
from ramet.planning.memory_engine import CACHE, CUDA_CONTEXT, CUDA_GRAPHS, ENGINE_WEIGHTS, NCCL, WORKSPACES
from ramet.planning.memory_policy import (
    GRADIENTS,
    OPTIMISER,
    PAGE,
    RESERVED,
    WEIGHTS,
    TrainedModel,
    phases,
    reserved,
    resident,
    state,
)  # fmt: skip
from ramet.planning.memory_report import check_memory, gib, table
from ramet.planning.model_shape import count, read_shape, shape_of
from ramet.planning.placement import Machine, check_placement, idle_devices, machine_of, plan_devices
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec
from ramet.testing.batches import root_row
from ramet.types import Need

MakeInputs = Callable[..., Inputs]
GIB = 2**30
GPU = SimpleNamespace(total_memory=8 * GIB, name="NVIDIA H200")  # as CUDA describes it
TINY = dict(hidden=32, layers=2, heads=2, intermediate=64)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), **TINY)


@pytest.mark.parametrize(
    ("model", "published"),
    [("qwen2.5-7b", 7_615_616_512), ("qwen3-14b", 14_768_307_200), ("qwen2.5-1.5b", 1_543_714_304)],
)
def test_parameters_are_counted_as_published_tied_ones_once(
    model: str, published: int, model_config: Callable[..., PretrainedConfig]
) -> None:
    config = model_config(model)
    with torch.device("meta"):
        real = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    assert shape_of(config).n_parameters == real == published


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwen3-14b"])
def test_weights_gradients_and_optimiser_are_sixteen_bytes_a_parameter_over_all_ranks(
    model: str, make_inputs: MakeInputs
) -> None:
    inputs = make_inputs(model)
    held = state(TrainedModel(shape=inputs.shape, config=inputs.config, ranks=8, cuda=True))
    n = inputs.shape.n_parameters
    assert {name: 8 * size for name, size in held.items()} == {WEIGHTS: 4 * n, GRADIENTS: 4 * n, OPTIMISER: 8 * n}


def one_row(i: int) -> Row:
    ids = np.arange(6, dtype=np.int32)
    return root_row(ids[:2], ids, logprobs=np.full(6, -5, np.float32), id=str(i), reward=float(i))


def held_by_a_worker(tiny: Path, policy: PolicyConfig, dtype: Dtype) -> dict[str, int]:
    """Bytes of a real worker's tensors in its first update; the counts of steps, one number each, are left out."""
    worker = PolicyRank(
        PolicySpec(
            model=ModelConfig(path=str(tiny), dtype=dtype), policy=policy, train=TrainConfig(),
            policy_loss=PpoClip(PpoClipConfig()), temperature=1.0, max_response_tokens=8, total_steps=2, seed=1,
        )
    )  # fmt: skip
    found: dict[str, int] = {}

    def look(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = list(worker.model.parameters())
        found[WEIGHTS] = sum(p.nbytes for p in parameters)
        found[GRADIENTS] = sum(p.grad.nbytes for p in parameters if p.grad is not None)
        moments = [value for one in optimizer.state.values() for value in one.values() if value.dim()]
        found[OPTIMISER] = sum(value.nbytes for value in moments)

    worker.policy.optimizer.register_step_post_hook(look)
    worker.update(TrainBatch(rows=[one_row(0), one_row(1)]).with_advantages(torch.ones(2, 6)), 1)
    return found


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("rank", [0, 4])
def test_the_plan_equals_what_a_worker_holds_to_the_byte(
    tiny: Path, make_inputs: MakeInputs, dtype: Dtype, rank: int
) -> None:
    if rank:
        pytest.importorskip("peft")
    inputs = make_inputs(dtype=dtype, policy={"lora_rank": rank})
    shape = read_shape(ModelConfig(path=str(tiny)))
    planned = state(TrainedModel(shape=shape, config=inputs.config, ranks=1, cuda=False))
    assert planned == held_by_a_worker(tiny, PolicyConfig(lora_rank=rank, activation_checkpointing=True), dtype)


def test_the_cache_of_the_torch_engine_is_the_one_that_it_allocates(make_inputs: MakeInputs) -> None:
    engine = ComponentConfig(name="torch", params=TorchEngineConfig(slots=4))
    inputs = make_inputs("qwen2.5-1.5b", prompt=5, response=9, engine=engine, shape={"num_hidden_layers": 2})
    s = inputs.shape
    cache = KVCache(
        layers=s.layers, slots=4, kv_heads=s.kv_heads, max_tokens=14, head_dim=s.head_dim, dtype=torch.bfloat16,
        device=torch.device("meta"),
    )  # fmt: skip
    found = estimate(inputs).engine
    assert found is not None and found.cache == cache.keys.nbytes + cache.values.nbytes


def test_on_a_cpu_the_torch_engine_packs_a_tied_head_beside_the_embedding_unless_it_is_deterministic(
    make_inputs: MakeInputs,
) -> None:
    def weights(dtype: Dtype, *, deterministic: bool = False) -> int:
        cpu = Machine(cuda=False, devices=1, device_bytes=1000 * GIB, host_bytes=1000 * GIB)
        engine = ComponentConfig(name="torch", params=TorchEngineConfig(slots=4))
        inputs = make_inputs("qwen2.5-1.5b", machine=cpu, engine=engine, dtype=dtype)
        inputs.config.run.deterministic = deterministic
        planned = estimate(inputs).engine
        assert planned is not None
        return planned.parts[ENGINE_WEIGHTS]

    plain = weights(Dtype.FLOAT32, deterministic=True)
    assert plain == 2 * weights(Dtype.BFLOAT16)
    assert weights(Dtype.FLOAT32) == plain + 4 * 151936 * 1536


def test_vllm_gets_its_share_and_leaves_what_weights_and_work_do_not_take_to_the_cache(make_inputs: MakeInputs) -> None:
    found = estimate(make_inputs()).engine
    assert found is not None
    assert found.parts[ENGINE_WEIGHTS] == 2 * 7_615_616_512
    assert found.total == pytest.approx(0.7 * 80 * GIB, abs=1)
    assert found.token_bytes == 2 * 28 * 4 * 128 * 2
    fixed = VllmEngineConfig(slots=2, kv_cache_bytes=GIB, tensor_parallel=2)
    shared = estimate(make_inputs(engine=ComponentConfig(name="vllm", params=fixed), cluster={"rollout_workers": 4}))
    assert shared.engine is not None and shared.engine.cache == GIB
    assert shared.engine.token_bytes == 28 * 4 * 128 * 2 and shared.engine.parts[ENGINE_WEIGHTS] == 7_615_616_512


def test_a_sleeping_engine_is_not_there_during_updates_and_another_one_is(make_inputs: MakeInputs) -> None:
    (both,) = estimate(make_inputs()).devices
    assert CACHE not in both.phases[UPDATE] and {CACHE, WEIGHTS, OPTIMISER} <= both.phases[ROLLOUTS].keys()
    torch_engine = ComponentConfig(name="torch", params=TorchEngineConfig())
    (awake,) = estimate(make_inputs(engine=torch_engine)).devices
    assert {CACHE, WEIGHTS} <= awake.phases[UPDATE].keys()
    policy, engine = estimate(
        make_inputs(cluster={"colocate": False, "policy_workers": 4, "rollout_workers": 4})
    ).devices
    assert policy.phases.keys() == {UPDATE} and engine.phases.keys() == {ROLLOUTS}
    assert WEIGHTS not in engine.phases[ROLLOUTS] and CACHE not in policy.phases[UPDATE]


def test_every_process_on_a_gpu_has_a_cuda_context_which_stays_while_its_engine_sleeps(make_inputs: MakeInputs) -> None:
    def contexts(**options: Any) -> list[list[int]]:
        found = estimate(make_inputs(**options)).devices
        return [[parts.get(CONTEXTS, 0) // CUDA_CONTEXT for parts in device.phases.values()] for device in found]

    torch_engine = ComponentConfig(name="torch", params=TorchEngineConfig())
    local = {"name": "local", "policy_workers": 1, "rollout_workers": 1, "colocate": False}
    assert contexts() == [[2, 2]]
    assert contexts(cluster={"colocate": False, "policy_workers": 4, "rollout_workers": 4}) == [[1], [1]]
    assert contexts(cluster=local) == [[2, 2]]
    assert contexts(cluster=local, engine=torch_engine) == [[1, 1]]
    alone = replace(make_inputs(cluster=local, engine=torch_engine), trains=False)
    assert estimate(alone).devices[0].phases[ROLLOUTS][CONTEXTS] == CUDA_CONTEXT
    assert contexts(machine=Machine(cuda=False, devices=1, device_bytes=GIB)) == [[0, 0]]


def test_engines_alone_are_planned_as_evaluation_has_them(make_inputs: MakeInputs) -> None:
    inputs = replace(make_inputs(cluster={"rollout_workers": 2}), trains=False)
    plan = estimate(inputs)
    assert str(plan.placement) == "cluster ray: 2 rollout workers with engine vllm: engine on cuda 0 to 1"
    (device,) = plan.devices
    assert device.phases.keys() == {ROLLOUTS} and WEIGHTS not in device.phases[ROLLOUTS] and plan.host_parts[ASIDE] == 0
    assert not [line for line in table(plan) if "policy" in line]
    one = replace(inputs, machine=Machine(cuda=True, devices=1, device_bytes=80 * GIB))
    [problem] = check_placement(one.config, one.machine, trains=False)
    assert problem.startswith("cluster: 2 rollout workers need 2 devices") and "cluster.rollout_workers=2" in problem


def test_one_engine_over_several_devices_beside_the_policy(make_inputs: MakeInputs) -> None:
    wide = ComponentConfig(name="vllm", params=VllmEngineConfig(tensor_parallel=2))
    local = {"name": "local", "policy_workers": 1, "rollout_workers": 1, "colocate": False}
    inputs = make_inputs(engine=wide, cluster=local, machine=Machine(cuda=True, devices=1, device_bytes=80 * GIB))
    plan = plan_devices(inputs.config, inputs.machine)
    assert str(plan) == "cluster local: engine vllm of 2 devices and the policy in this process, on cuda"
    assert [(group.role, group.numbers) for group in plan.devices] == [("policy and engine", "0"), ("engine", "1")]
    [problem] = check_placement(inputs.config, inputs.machine)
    assert problem.startswith("cluster: 1 policy rank and 1 rollout worker need 2 devices")
    assert "lower engine.params.tensor_parallel=2, " in problem


def test_what_a_sleeping_engine_keeps_is_beside_the_update(make_inputs: MakeInputs) -> None:
    (device,) = estimate(make_inputs()).devices
    assert device.phases[UPDATE][ASLEEP] == CUDA_GRAPHS + WORKSPACES and ASLEEP not in device.phases[ROLLOUTS]
    assert all(parts[EXCHANGE] == NCCL for parts in device.phases.values())
    eager = ComponentConfig(name="vllm", params=VllmEngineConfig(enforce_eager=True))
    assert estimate(make_inputs(engine=eager)).devices[0].phases[UPDATE][ASLEEP] == WORKSPACES


def test_only_what_is_exact_refuses_a_model_whose_passes_were_not_traced(make_inputs: MakeInputs) -> None:
    inputs = make_inputs(policy={"activation_checkpointing": False})
    inputs = replace(inputs, machine=replace(inputs.machine, device_bytes=estimate(inputs).need - GIB))
    assert check_memory(estimate(inputs)) != []
    other = replace(inputs, shape=replace(inputs.shape, architecture="olmo2"))
    assert check_memory(estimate(other)) == []
    assert "activations are a guess: olmo2 was not traced" in table(estimate(other))
    small = replace(other, machine=replace(other.machine, device_bytes=10 * GIB))
    assert "would need" in check_memory(estimate(small))[0]


def test_what_is_offloaded_waits_in_host_memory(make_inputs: MakeInputs) -> None:
    n = 7_615_616_512
    inputs = make_inputs(policy={"offload": Offload.OPTIMIZER})
    plan = estimate(inputs)
    (device,) = plan.devices
    # 8 n of moments and 12 n of the copy for saves; each chunk of pinned memory is a power of two.
    assert 20 * n < plan.host_parts[ASIDE] < 21 * n and OPTIMISER not in device.phases[ROLLOUTS]
    everything = estimate(make_inputs(policy={"offload": Offload.ALL}))
    # FSDP pins a block for each weight (4 n) and each gradient (4 n); moments (8 n) and the copy (12 n) are not pinned.
    assert 28 * n < everything.host_parts[ASIDE] < (28 + 8) * n
    (device,) = everything.devices
    assert not {WEIGHTS, GRADIENTS, OPTIMISER} & device.phases[UPDATE].keys()


@pytest.mark.parametrize(("train", "away"), [({"minibatches": 1}, True), ({"minibatches": 1, "epochs": 2}, False)])
def test_an_offloaded_optimiser_stays_from_an_updates_first_step_to_its_end(
    make_inputs: MakeInputs, train: dict[str, Any], away: bool
) -> None:
    inputs = make_inputs(policy={"offload": Offload.OPTIMIZER}, train=train)
    by_moment = phases(TrainedModel(shape=inputs.shape, config=inputs.config, ranks=8, cuda=True))
    assert {moment for moment, parts in by_moment.items() if OPTIMISER not in parts} == (
        {"output head", "block", "embedding"} if away else set()
    )
    assert resident(TrainedModel(shape=inputs.shape, config=inputs.config, ranks=8, cuda=True)).keys() == {WEIGHTS}


def test_reference_and_critic_count_only_where_somebody_needs_them(make_inputs: MakeInputs) -> None:
    inputs = make_inputs()
    (plain,) = estimate(inputs).devices
    assert not {"reference", "critic"} & plain.phases[UPDATE].keys()
    (with_kl,) = estimate(make_inputs(train={"kl_coef": 0.001})).devices
    assert with_kl.phases[UPDATE]["reference"] * 8 == 2 * 7_615_616_512
    (needing,) = estimate(
        Inputs(config=inputs.config, shape=inputs.shape, machine=inputs.machine, needs=frozenset({Need.VALUES}))
    ).devices
    body = count(critic_shape(inputs.shape).parameters)
    assert body == 7_615_616_512 - 152064 * 3584 + 3584
    assert needing.phases[UPDATE]["critic"] == pytest.approx(12 * body / 8, rel=1e-5)
    assert "critic's update" in needing.phases


def test_sequence_parallel_shares_a_sequence_that_is_longer_than_a_micro_batch(make_inputs: MakeInputs) -> None:
    def tokens(size: int) -> int:
        policy = {"max_microbatch_tokens": 8192, "sequence_parallel": size}
        return estimate(make_inputs(prompt=2000, response=30000, policy=policy)).tokens

    assert (tokens(1), tokens(2), tokens(4)) == (32000, 16000, 8192)


def test_replicas_divide_what_ranks_hold_by_fewer(make_inputs: MakeInputs) -> None:
    """Two replicas of eight ranks hold what eight ranks do; activations are those of a micro-batch in each case."""

    def held(ranks: int, replicas: int, **policy: Any) -> dict[str, int]:
        places = {"policy_workers": ranks, "rollout_workers": ranks}
        inputs = make_inputs(policy={"replicas": replicas, **policy}, cluster=places, train={"kl_coef": 0.1})
        return dict(estimate(inputs).devices[0].phases[UPDATE])

    assert held(16, 2) == held(8, 1) and held(16, 1)[OPTIMISER] == held(16, 2)[OPTIMISER] // 2
    assert held(16, 1, offload=Offload.ALL).keys() & {WEIGHTS, GRADIENTS, OPTIMISER} == set()
    waiting = held(16, 2, offload=Offload.ALL)
    assert waiting[GRADIENTS] == held(16, 2)[GRADIENTS] and WEIGHTS not in waiting


@pytest.mark.parametrize(
    ("replicas", "shared_by", "machine", "told"),
    [
        (1, 1, "16x80GiB", ""),  # nodes are not known
        (2, 1, "2x8x80GiB", ""),
        (1, 1, "2x8x80GiB", "policy.replicas=1: the 16 policy ranks that share a copy of the weights are on several "
         "nodes, so every block is gathered over the network in each pass; policy.replicas=2 keeps that inside nodes, "
         "where memory suffices"),
        (2, 4, "4x4x80GiB", "policy.replicas=2: the 8 policy ranks that share a copy of the weights are on several "
         "nodes, so every block is gathered over the network in each pass; policy.replicas=4 keeps that inside nodes, "
         "where memory suffices"),
        (2, 8, "4x4x80GiB", "policy.replicas=2: the 8 policy ranks that share a copy of the weights are on several "
         "nodes, so every block is gathered over the network in each pass"),
        (1, 1, "16x1x80GiB", "policy.replicas=1: the 16 policy ranks that share a copy of the weights are on several "
         "nodes, so every block is gathered over the network in each pass"),
    ],
)  # fmt: skip
def test_the_plan_says_where_shards_lie_on_several_nodes(
    make_inputs: MakeInputs, replicas: int, shared_by: int, machine: str, told: str
) -> None:
    policy = {"replicas": replicas, "sequence_parallel": shared_by}
    inputs = make_inputs(policy=policy, cluster={"policy_workers": 16, "rollout_workers": 16})
    plan = estimate(replace(inputs, machine=machine_of(inputs.config, machine)))
    assert told in table(plan)[-1] if told else not any("policy.replicas" in line for line in table(plan))
    copies = "16 policy ranks (2 replicas of 8), " if replicas == 2 else "16 policy ranks, "
    assert str(plan.placement).startswith(f"cluster ray: {copies}16 rollout workers with engine vllm")


def test_fewer_replicas_are_advised_where_memory_is_too_small(make_inputs: MakeInputs) -> None:
    policy = {"replicas": 8, "offload": "none"}
    inputs = make_inputs("qwen3-14b", policy=policy, response=6192, cluster={"colocate": False})
    (problem,) = check_memory(estimate(inputs))
    assert "policy.replicas=4 (" in problem


def test_the_references_settings_fit_on_eight_devices_of_80_gib(make_inputs: MakeInputs) -> None:
    assert check_memory(estimate(make_inputs())) == []
    deep = make_inputs("qwen3-14b", prompt=2000, response=6192, tasks=64, group=12, share=0.6)
    assert check_memory(estimate(deep)) == []


def test_what_cannot_fit_is_refused_with_need_device_and_the_three_settings_that_help_most(
    make_inputs: MakeInputs,
) -> None:
    inputs = make_inputs("qwen3-14b", prompt=2000, response=6192, policy={"activation_checkpointing": False})
    (problem,) = check_memory(estimate(inputs))
    assert "cuda 0 to 7 (policy and engine) would need" in problem and "and has 80.0 GiB (activations" in problem
    advice = problem.partition("what helps most, each by itself: ")[2]
    assert advice.count("=") == 3 and advice.startswith("policy.activation_checkpointing=true (")
    assert "policy.max_microbatch_tokens=8192" in advice and "policy.offload=" in advice


def test_where_no_single_setting_is_enough_a_set_that_fits_is_named(make_inputs: MakeInputs) -> None:
    inputs = make_inputs("qwen3-14b", prompt=2000, response=6192, policy={"activation_checkpointing": False})
    inputs = replace(inputs, machine=Machine(cuda=True, devices=8, device_bytes=64 * GIB))
    (problem,) = check_memory(estimate(inputs))
    together, _, need = problem.partition("; together these fit: ")[2].rpartition(" (")
    assert float(need.split()[0]) <= 64 and len(together.split()) >= 2
    changed = {key: value for key, _, value in (one.partition("=") for one in together.split())}
    assert changed["policy.activation_checkpointing"] == "true"
    assert "rollout.max_response_tokens" not in changed  # it alters what is learned


def test_gpus_that_one_process_would_leave_idle_are_told_with_what_uses_them(make_inputs: MakeInputs) -> None:
    keys = "cluster.policy_workers and cluster.rollout_workers"
    idle = f"7 of 8 GPUs would be idle: with cluster=ray {keys} take more than one"
    alone = {"name": "local", "policy_workers": 1, "rollout_workers": 1, "colocate": False}
    machine = Machine(cuda=True, devices=8, device_bytes=80 * GIB, written="8x80GiB")
    (problem,) = check_memory(estimate(make_inputs(cluster=alone, machine=machine)))
    advice = problem.partition("what helps most, each by itself: ")[2]
    assert advice.startswith(
        "cluster=ray cluster.policy_workers=8 cluster.rollout_workers=8 cluster.colocate=true (68.8 GiB), "
    )
    assert advice.endswith(f"; {idle}")
    fits = estimate(make_inputs("qwen2.5-1.5b", cluster=alone, machine=machine, share=0.5, prompt=512, response=512))
    assert check_memory(fits) == [] and table(fits)[-1] == idle
    assert "idle" not in "\n".join(table(estimate(make_inputs(machine=machine))))


@pytest.mark.parametrize(
    ("cluster", "trains", "told"),
    [
        ({"policy_workers": 4, "rollout_workers": 4}, True,
         "4 of 8 GPUs would be idle: raise cluster.policy_workers or cluster.rollout_workers"),
        ({"policy_workers": 4, "rollout_workers": 4, "colocate": False}, True, ""),
        ({"rollout_workers": 6}, False, "2 of 8 GPUs would be idle: raise cluster.rollout_workers"),
        ({"name": "local"}, False, "7 of 8 GPUs would be idle: with cluster=ray cluster.rollout_workers take more than "
         "one"),
    ],
)  # fmt: skip
def test_idle_gpus(make_inputs: MakeInputs, cluster: dict[str, Any], trains: bool, told: str) -> None:
    inputs = make_inputs(cluster=cluster)
    assert idle_devices(inputs.config, inputs.machine, trains=trains) == told


@pytest.mark.parametrize(("model", "n"), [("qwen2.5-7b", 7_615_616_512), ("qwen3-14b", 14_768_307_200)])
def test_host_memory_is_that_of_saves_stored_weights_and_processes(model: str, n: int, make_inputs: MakeInputs) -> None:
    """Engines share the policy's GPUs: weights stay there, and sleeping engines drop theirs."""
    ours = estimate(make_inputs(model)).host_parts
    assert ours == {ASIDE: ours[ASIDE], STORED: 0, PROCESSES: 17 * PROCESS_BYTES}
    assert 12 * n < ours[ASIDE] < 1.07 * 12 * n  # on GPUs a save is written from a copy, in chunks of pinned memory
    on_cpu = make_inputs(model, machine=Machine(cuda=False, devices=1, device_bytes=None))
    processes = 17 * CPU_PROCESS_BYTES
    assert estimate(on_cpu).host_parts == {ASIDE: 0, PROCESSES: processes}  # but there, where the run waits
    on_cpu.config.train.async_save = True
    assert estimate(on_cpu).host_parts == {ASIDE: 12 * n, PROCESSES: processes}
    assert f"in addition, of all processes, GiB: offloaded and copied for saves {gib(12 * n)}, processes 9.0" in table(
        estimate(on_cpu)
    )
    params = VllmEngineConfig(transfer="host")
    stored = estimate(make_inputs(model, engine=ComponentConfig(name="vllm", params=params)))
    assert stored.host_parts[STORED] == 2 * n + 2 * 2**30
    assert any(line.startswith("host memory of all nodes: ") for line in table(stored))


def test_reserved_memory_is_whole_pages_and_a_share_of_what_passes_need(make_inputs: MakeInputs) -> None:
    (device,) = estimate(make_inputs()).devices
    assert 0 < device.phases[ROLLOUTS][RESERVED] < device.phases[UPDATE][RESERVED] < 0.1 * device.need
    tall = tiny_model(
        "qwen2", vocabulary=3001, hidden=128, intermediate=512, layers=2, heads=2, tie_word_embeddings=True
    )
    shape = shape_of(tall.config)
    model = TrainedModel(shape=shape, config=make_inputs().config, ranks=1, cuda=True)
    sizes = [4 * np.prod(one) for one in shape.parameters]
    pages = sum(-(-size // PAGE) * PAGE - size for size in sizes if size > PAGE // 2)
    assert reserved(model, {WEIGHTS: 1}) == pages and reserved(model, {WEIGHTS: 1, OPTIMISER: 2}) == 3 * pages
    on_cpu = estimate(make_inputs(machine=Machine(cuda=False, devices=1, device_bytes=GIB)))
    assert all(RESERVED not in parts for device in on_cpu.devices for parts in device.phases.values())


def test_an_engine_without_room_for_one_rollout_is_refused(make_inputs: MakeInputs) -> None:
    (problem,) = check_memory(estimate(make_inputs("qwen3-14b", share=0.36)))
    assert "one rollout of 5632 tokens takes" in problem and "engine.params.gpu_memory_utilization" in problem


def test_on_a_cpu_only_the_memory_of_the_whole_host_is_too_little(make_inputs: MakeInputs) -> None:
    torch_engine = ComponentConfig(name="torch", params=TorchEngineConfig(slots=8))
    big = Machine(cuda=False, devices=1, device_bytes=1000 * GIB, host_bytes=1000 * GIB)
    plan = estimate(make_inputs(machine=big, engine=torch_engine, cluster={"policy_workers": 2, "rollout_workers": 1}))
    assert check_memory(plan) == [] and "of 1000.0 GiB of this machine" in table(plan)[-1]
    small = Machine(cuda=False, devices=1, device_bytes=GIB, host_bytes=GIB)
    (problem,) = check_memory(estimate(make_inputs(machine=small, engine=torch_engine)))
    assert problem.startswith("memory: host memory") and "policy.offload" not in problem


def test_ranks_and_engines_are_placed_beside_each_other_or_together(make_inputs: MakeInputs) -> None:
    together = make_inputs()
    assert str(plan_devices(together.config, together.machine)) == (
        "cluster ray: 8 policy ranks, 8 rollout workers with engine vllm: policy and engine on cuda 0 to 7"
    )
    beside = make_inputs(cluster={"policy_workers": 6, "rollout_workers": 2, "colocate": False})
    assert str(plan_devices(beside.config, beside.machine)) == (
        "cluster ray: 6 policy ranks, 2 rollout workers with engine vllm: policy on cuda 0 to 5; engine on cuda 6 to 7"
    )
    assert check_placement(beside.config, beside.machine) == []
    many = make_inputs(cluster={"colocate": False})
    (problem,) = check_placement(many.config, many.machine)
    assert problem == (
        "cluster: 8 policy ranks and 8 rollout workers need 16 devices at once, and the machine has 8; lower "
        "cluster.policy_workers=8 or cluster.rollout_workers=8, or set cluster.colocate=true, or take a machine with "
        "more"
    )


def test_advice_names_only_what_is_not_set_already(make_inputs: MakeInputs) -> None:
    def advice(**cluster: Any) -> str:
        made = make_inputs(cluster=cluster)
        (problem,) = check_placement(made.config, replace(made.machine, devices=1))
        return problem.partition("; ")[2]

    more = "or take a machine with more"
    assert advice(colocate=True) == f"lower cluster.policy_workers=8 and cluster.rollout_workers=8, {more}"
    one = {"policy_workers": 1, "rollout_workers": 1}
    assert advice(colocate=False, **one) == f"set cluster.colocate=true, {more}"
    uneven = advice(colocate=False, policy_workers=4, rollout_workers=1)  # could not take turns
    assert uneven == f"lower cluster.policy_workers=4, {more}"


def test_a_machine_is_named_or_found(make_inputs: MakeInputs) -> None:
    config = make_inputs().config
    named = machine_of(config, "16x141GB")
    assert (named.cuda, named.devices, named.device_bytes, named.nodes) == (True, 16, 141 * 10**9, None)
    named = machine_of(config, "2x8x80GiB")
    assert (named.devices, named.device_bytes, named.nodes) == (16, 80 * GIB, 2)
    named = machine_of(config, "2x8xh200")
    assert (named.devices, named.nodes, named.gpu, named.device_bytes) == (16, 2, "H200", 143771 * 2**20)
    for wrong in (
        "80GiB",
        "8x80",
        "8xH999",
        "H100",
        "0x80GiB",
        "8x80TB",
        "0x8x80GiB",
        "2x0x80GiB",
        "2x8x0GiB",
        "1x2x8x80GiB",
    ):
        with pytest.raises(ConfigError, match="--on"):
            machine_of(config, wrong)


def test_the_machine_is_asked_if_none_is_named(make_inputs: MakeInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_inputs().config
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5 * GIB, 8 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: GPU)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = machine_of(config, ask_free=True)
    assert (found.cuda, found.devices, found.device_bytes, found.free_bytes) == (True, 2, 8 * GIB, 5 * GIB)
    assert (found.nodes, found.gpu) == (1, "H200")
    assert machine_of(config).free_bytes is None  # to ask for it costs a CUDA context
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = machine_of(config)
    assert not found.cuda and found.host_bytes is not None and found.host_bytes > GIB


def test_a_folder_whose_shapes_cannot_be_made_is_a_mistake_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nothing_known"}')
    with pytest.raises(ConfigError, match=r"model\.path: no shapes can be made of"):
        read_shape(ModelConfig(path=str(tmp_path)))
