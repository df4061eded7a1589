"""The estimate of a step's seconds: it agrees with an audit's arithmetic, and answers settings as a machine would."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ramet.config.schema import Attention, ComponentConfig, Offload, OldLogprobs, SharePrefixes, ToolConfig
from ramet.engines.config import OpenAIEngineConfig, VllmEngineConfig
from ramet.planning.drawn import Drawn, Expected, draw
from ramet.planning.gpus import GPUS, gpu_called
from ramet.planning.memory import Inputs, estimate
from ramet.planning.memory_report import allowed, fits
from ramet.planning.placement import Machine
from ramet.planning.step_time import DRIVER, LOGPROBS, ROLLOUTS, SAVE, SYNC, UPDATE, StepTime, step_time
from ramet.planning.time_report import gains, time_table
from ramet.planning.time_rollouts import AGAIN, CALLS, TOOLS, rollout_time
from ramet.policy.batching.trie import trie
from ramet.types import Need

MakeInputs = Callable[..., Inputs]
Estimated = Callable[..., StepTime]
GIB = 2**30
# The audit's run: 8.8 million tokens in 2,048 rollouts.
AUDIT = Expected(response_tokens=3150, tool_s=0.0)


def node(gpu: str = "H100", devices: int = 8, **more: Any) -> Machine:
    return Machine(cuda=True, devices=devices, device_bytes=GPUS[gpu].memory, gpu=gpu, **more)


@pytest.fixture
def estimated(make_inputs: MakeInputs) -> Estimated:
    """The estimate of ARPO's 7B run, or of another one; `set_` are sections that replace the configuration's."""

    def build(expected: Expected = AUDIT, *, set_: dict[str, Any] | None = None, **changes: Any) -> StepTime:
        inputs = make_inputs(**{"machine": node(), **changes})
        config = replace(inputs.config, **{"branch_policy": ComponentConfig(name="random"), **(set_ or {})})
        found = step_time(estimate(replace(inputs, config=config)), expected)
        assert isinstance(found, StepTime), found
        return found

    return build


SHARED = {"policy": {"share_prefixes": SharePrefixes.ALWAYS, "max_microbatch_tokens": 36864,
                     "activation_checkpointing": True}}  # fmt: skip
SEPARATE = {"policy": {"share_prefixes": SharePrefixes.NEVER, "max_microbatch_tokens": 11264,
                       "activation_checkpointing": True}}  # fmt: skip
ENGINE = {"train": {"old_logprobs": OldLogprobs.ENGINE}}


@pytest.mark.parametrize(
    ("attention", "changes", "logprobs", "update", "rest"),
    [
        (Attention.SDPA, SEPARATE, (44, 50), (178, 201), 9),
        (Attention.VARLEN, SEPARATE, (42, 42), (168, 168), 10),
        (Attention.VARLEN, SHARED, (23, 23), (95, 100), 10),
        (Attention.VARLEN, SHARED | ENGINE, (0, 0), (95, 100), 10),
    ],
)
def test_passes_agree_with_the_audits_table_within_a_tenth(
    estimated: Estimated,
    make_inputs: MakeInputs,
    attention: Attention,
    changes: dict[str, Any],
    logprobs: tuple[float, float],
    update: tuple[float, float],
    rest: float,
) -> None:
    """Seconds of audit-gpu §3, 7B with 128 x 16 rollouts on 8 x H100: log-probabilities, update, and the smaller rest
    (record, sleep, weights, checkpoint, driver), which differs by at most 3 s.
    """
    model = replace(make_inputs().config.model, attention=attention)
    found = estimated(set_={"model": model}, **changes)
    tokens = found.drawn.prompt * len(found.drawn.lengths) + found.drawn.lengths.sum()
    assert tokens == pytest.approx(8.8e6, rel=0.01)
    for phase, (low, high) in ((LOGPROBS, logprobs), (UPDATE, update)):
        assert 0.9 * low <= found.phases[phase] <= 1.1 * high, phase
    synced = replace(found.plan.inputs.config.train, async_save=True, save_every=5)
    saved = estimated(set_={"model": model, "train": synced}, **changes)
    assert sum(saved.phases[phase] for phase in (SYNC, SAVE, DRIVER)) == pytest.approx(rest, abs=3)


def test_decoding_agrees_with_the_audits_table_within_a_quarter(estimated: Estimated) -> None:
    """There 256 rollouts of an engine all sample 4,096 tokens, with 2.5k behind them in the mean: 99 to 121 s."""
    plan = estimated().plan
    n = 128 * 16
    same = np.full(n, 4096), np.zeros(n, np.int64), np.full(n, -1)
    drawn = Drawn(prompt=450, lengths=same[0], forks=same[1], parents=same[2], group_size=16, calls=0, result=1)
    found = rollout_time(plan, drawn, GPUS["H100"], tool_s=0.0)
    assert 0.75 * 99 <= found.seconds <= 1.25 * 121
    assert found.parts[AGAIN] > 0  # 764,660 tokens of cache are less than 256 such rollouts have at their end


def test_what_prefixes_save_is_what_the_audit_took_for_arpo(estimated: Estimated) -> None:
    found = estimated(**SHARED)
    assert found.update.saved() == pytest.approx(1.91, rel=0.1)


def test_a_drawn_groups_tries_are_those_of_its_tokens(make_inputs: MakeInputs) -> None:
    config = replace(make_inputs(tasks=2, group=6).config, branch_policy=ComponentConfig(name="random"))
    drawn = draw(config, Expected(response_tokens=50))
    assert (drawn.parents >= 0).sum() == 6 and (drawn.forks[drawn.parents >= 0] > 0).any()
    sequences: list[NDArray[np.int32]] = []
    for i, (length, parent, fork) in enumerate(zip(drawn.lengths, drawn.parents, drawn.forks, strict=True)):
        own = 1000 * (i + 2) + np.arange(length)
        start = sequences[parent][: drawn.prompt + fork] if parent >= 0 else np.full(drawn.prompt, i // 6)
        sequences.append(np.concatenate([start, own[fork:]]).astype(np.int32))
    chosen = [0, 2, 3, 5]
    for rows in (range(6), range(6, 12), chosen):
        (found,), real = drawn.tries(rows), trie([sequences[row][:-1] for row in rows])
        assert (found.n_tokens, found.n_pairs) == (real.n_tokens, real.n_pairs)
        assert sorted(found.order) == list(rows)


@pytest.mark.parametrize("gpu", ["A100", "H200", "B200"])
def test_a_faster_gpu_is_faster(estimated: Estimated, gpu: str) -> None:
    at_least = {"A100": -1, "H200": 1, "B200": 1}[gpu]
    difference = estimated(**SHARED).seconds - estimated(machine=node(gpu), **SHARED).seconds
    assert difference * at_least > 0


def test_more_ranks_and_engines_are_not_slower(estimated: Estimated) -> None:
    def seconds(devices: int, **policy: Any) -> StepTime:
        places = {"policy_workers": devices, "rollout_workers": devices}
        machine = node(devices=devices, nodes=max(1, devices // 8))
        return estimated(machine=machine, cluster=places, policy=SHARED["policy"] | policy)

    found = [seconds(devices) for devices in (4, 8, 16)]
    for fewer, more in pairwise(found):
        assert more.phases[ROLLOUTS] < fewer.phases[ROLLOUTS] and more.phases[UPDATE] < fewer.phases[UPDATE]
    inside = seconds(16, replicas=2)  # blocks are gathered inside nodes
    assert inside.phases[UPDATE] < found[2].phases[UPDATE] * 1.01


def test_each_replica_copies_all_weights_for_a_checkpoint(estimated: Estimated) -> None:
    def save_s(devices: int, replicas: int) -> float:
        machine, places = node(devices=devices, nodes=devices // 8), {"policy_workers": devices}
        train, policy = {"async_save": True}, SHARED["policy"] | {"replicas": replicas}
        return estimated(machine=machine, cluster=places, train=train, policy=policy).phases[SAVE]

    assert save_s(16, 2) == save_s(8, 1) > save_s(16, 1)


def test_a_smaller_cache_drops_sequences_and_is_slower(estimated: Estimated) -> None:
    def with_cache(tokens: int) -> StepTime:
        params = VllmEngineConfig(kv_cache_bytes=57_344 * tokens)
        return estimated(engine=ComponentConfig(name="vllm", params=params))

    many, few = with_cache(900_000).rollouts, with_cache(60_000).rollouts
    assert few.seconds > many.seconds and few.at_once < many.at_once
    assert few.dropped > 0 == many.dropped and few.limit == "the cache"


def test_slow_tools_are_waited_for_and_their_places_are_named(estimated: Estimated) -> None:
    def with_tool(tool_s: float, places: int) -> StepTime:
        tools = {"python": ToolConfig(concurrency=places)}
        return estimated(replace(AUDIT, tool_s=tool_s), set_={"tools": tools})

    quick, slow, queued = with_tool(0.0, 64), with_tool(5.0, 256), with_tool(5.0, 16)
    assert quick.phases[ROLLOUTS] < slow.phases[ROLLOUTS] < queued.phases[ROLLOUTS]
    assert queued.rollouts.limit == CALLS and quick.rollouts.parts.get(TOOLS, 0.0) < 1
    assert quick.phases[UPDATE] == slow.phases[UPDATE]


def test_longer_responses_take_longer_in_every_phase(estimated: Estimated) -> None:
    short, long = estimated(Expected(response_tokens=1000)), estimated(Expected(response_tokens=3000))
    assert all(long.phases[phase] > short.phases[phase] for phase in (ROLLOUTS, LOGPROBS, UPDATE, DRIVER))


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"policy": SEPARATE["policy"] | {"activation_checkpointing": False}}, UPDATE),
        ({"policy": SEPARATE["policy"] | {"lora_rank": 32}}, UPDATE),
        ({"policy": SEPARATE["policy"] | {"offload": Offload.NONE}}, UPDATE),
        ({"train": {"async_save": True}}, SAVE),
        ({"train": {"kl_coef": 0.0}}, LOGPROBS),
    ],
)
def test_what_a_setting_costs_is_counted_in_its_phase(
    estimated: Estimated, changes: dict[str, dict[str, Any]], phase: str
) -> None:
    """Each of these is cheaper than its alternative, which is in `dear`."""
    dear = {"policy": SEPARATE["policy"] | {"offload": Offload.OPTIMIZER}, "train": {"kl_coef": 0.001}}
    assert estimated(**dear | changes).phases[phase] < estimated(**dear).phases[phase]


def test_a_critic_is_trained_and_asked_for_values_too(make_inputs: MakeInputs) -> None:
    inputs = make_inputs(machine=node())
    alone = step_time(estimate(inputs), AUDIT)
    both = step_time(estimate(replace(inputs, needs=frozenset({Need.VALUES}))), AUDIT)
    assert isinstance(alone, StepTime) and isinstance(both, StepTime)
    assert 1.8 < both.phases[UPDATE] / alone.phases[UPDATE] < 2.1
    assert both.phases[LOGPROBS] > 1.8 * alone.phases[LOGPROBS]


@pytest.mark.parametrize("need", [Need.OLD_LOGPROBS, Need.RESCORED, Need.PROBED])
def test_what_an_estimator_has_scored_is_a_pass_more(make_inputs: MakeInputs, need: Need) -> None:
    """Of the policy; a pass of a teacher of the same size is as long, and one that nothing asks for is none."""
    inputs = make_inputs(machine=node(), train={"kl_coef": 0.0, "minibatches": 1})
    taught = replace(inputs, teacher=inputs.shape)
    asked = [replace(one, needs=frozenset({need})) for one in (inputs, taught)]
    seconds = []
    for one in (inputs, taught, *asked):
        found = step_time(estimate(one), AUDIT)
        assert isinstance(found, StepTime)
        seconds.append(found.phases[LOGPROBS])
    assert seconds[:2] == [0.0, 0.0] and seconds[2] == pytest.approx(seconds[3]) and seconds[2] > 1


def test_rollouts_that_run_ahead_hide_behind_the_update(estimated: Estimated) -> None:
    beside = {"colocate": False, "policy_workers": 4, "rollout_workers": 4}
    found = estimated(cluster=beside, train={"staleness": 1})
    assert found.ahead
    assert found.seconds == pytest.approx(
        max(found.phases[ROLLOUTS], sum(found.phases[p] for p in (LOGPROBS, UPDATE, SAVE, DRIVER))) + found.phases[SYNC]
    )


def test_where_nothing_is_known_there_is_no_estimate(make_inputs: MakeInputs) -> None:
    def said(**changes: Any) -> str:
        found = step_time(estimate(make_inputs(**changes)), Expected())
        assert isinstance(found, str)
        return found

    cpu = {"name": "local", "policy_workers": 1, "rollout_workers": 1, "colocate": False}
    machine = Machine(cuda=False, devices=1, device_bytes=64 * GIB, host_bytes=64 * GIB)
    assert said(machine=machine, cluster=cpu).startswith("not estimated: on a CPU")
    assert said().startswith("not estimated: no speed is known of these GPUs")
    elsewhere = ComponentConfig(name="openai", params=OpenAIEngineConfig())
    assert said(machine=node(), engine=elsewhere) == "not estimated: no formula for engine=openai"
    assert time_table("not estimated: no shapes", Expected()) == ["not estimated: no shapes"]


def test_what_gains_most_is_legal_fits_and_was_planned(estimated: Estimated) -> None:
    slow = SEPARATE["policy"] | {"max_microbatch_tokens": 5632}
    time = estimated(policy=slow, share=0.4)
    found = gains(time, AUDIT)
    assert {"policy.share_prefixes", "policy.max_microbatch_tokens"} <= {gain.change.key for gain in found}
    assert [gain.seconds for gain in found] == sorted((gain.seconds for gain in found), reverse=True)
    for gain in found:
        plan = estimate(replace(time.plan.inputs, config=gain.change.config))
        again = step_time(plan, AUDIT)
        assert isinstance(again, StepTime) and fits(plan) and allowed(time.plan, gain.change)
        assert time.seconds - again.seconds == pytest.approx(gain.seconds)
    last = time_table(time, AUDIT)[-1]
    assert last == f"what would gain most, each by itself: {', '.join(map(str, found[:3]))}"


def test_ranks_that_share_sequences_wait_for_their_exchange(estimated: Estimated) -> None:
    """Qwen2.5-7B has 28 query and 4 key heads of 128: four ranks exchange them all, seven four repeated times seven."""

    def shared_by(n: int, ranks: int = 8) -> StepTime:
        places = {"policy_workers": ranks, "rollout_workers": ranks}
        return estimated(policy={"sequence_parallel": n, "max_microbatch_tokens": 5632}, cluster=places)

    four, seven = shared_by(4), shared_by(7, ranks=7)
    for time, shared, heads in ((four, 4, 28 + 4), (seven, 7, 28 + 28)):
        sent = 1000 * 2 * heads * 128 * 2 * (1 - 1 / shared)  # bytes of a rank with 1,000 tokens in one block
        assert time.update.swapped(1000 * shared) == pytest.approx(28 * sent / (0.7 * 450e9))
    passes = four.update.update(exchanges=False)
    assert passes < four.phases[UPDATE] < 1.1 * passes
    assert shared_by(1).update.swapped(1000) == 0


def test_what_compilation_saves_is_said_to_be_not_estimated(estimated: Estimated) -> None:
    plain, compiled = estimated(**SHARED), estimated(policy=SHARED["policy"] | {"compile": True})
    assert plain.seconds == compiled.seconds
    added = [line for line in time_table(compiled, AUDIT) if line not in time_table(plain, AUDIT)]
    assert len(added) == 1 and added[0].startswith("not estimated: what policy.compile=true saves")


def test_the_table_is_marked_as_an_estimate_and_adds_up(estimated: Estimated) -> None:
    time = estimated(**SHARED)
    head, *lines = time_table(time, AUDIT)
    assert head.startswith("estimated, ")
    rows = dict(re.findall(r"^  (\S.*?) +([\d.]+)(?:  |$)", "\n".join(lines), re.MULTILINE))
    assert list(rows) == [*time.phases, "step"]
    assert sum(float(rows[phase]) for phase in time.phases) == pytest.approx(float(rows["step"]), abs=0.4)
    assert any(line.startswith(f"bounded by {time.bound} (") for line in lines)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100-SXM4-40GB", None),
        ("NVIDIA L4", None),
    ],
)
def test_a_device_is_known_by_the_name_that_cuda_has_for_it(name: str, gpu: str | None) -> None:
    assert gpu_called(name) == gpu
