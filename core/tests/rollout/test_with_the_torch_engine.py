"""The scheduler on a real model: a deterministic run is bit-identical whatever the timing, and forks are cheap."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from engine_subject import reference
from engine_updates import changed_copy

from ramet.config.schema import ModelConfig, RolloutConfig, SystemPrompt, ToolConfig
from ramet.engines.config import TorchEngineConfig
from ramet.engines.protocol import Request, Sampling
from ramet.engines.torch import TorchEngine
from ramet.models.encoder import Encoder
from ramet.models.loading import load_model, load_tokenizer
from ramet.models.tiny import make_tiny_model
from ramet.rollout.branching.builtin import RandomBranching
from ramet.rollout.branching.token_entropy import TokenEntropy
from ramet.rollout.branching.value_guided import ValueGuided
from ramet.rollout.completion import Versions
from ramet.rollout.config import RandomBranchConfig, TokenEntropyConfig, ValueGuidedConfig
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import echo_tool
from ramet.types import (
    AfterTool,
    BranchAction,
    BranchEvent,
    BranchPolicy,
    FirstTokens,
    Fork,
    Group,
    GroupView,
    Markup,
    Need,
    Rollout,
    RolloutScore,
    RolloutState,
    Scored,
    Start,
    StartRoots,
    StepContext,
    StepResult,
    Stop,
    StopReason,
    Task,
    ToolCall,
    Untrusted,
)
from ramet.types import user_prompt as prompt


class CallsOften:
    """A step under which an untrained model calls tools: a vowel ends each turn."""

    def system_prompt(self, tools: Any) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        generation = await ctx.generate(stop=["a", "e", "i", "o", "u"])
        if state.turn == 3 or generation.truncated or generation.finished:
            return StepResult(stop=StopReason.END)
        result = await ctx.call_tool(ToolCall(name="python", arguments={"text": generation.text[-9:]}))
        return StepResult(insert=(Markup(text="<result>"), Untrusted(text=result.text), Markup(text="</result>")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("model")
    make_tiny_model(folder, hidden=32, layers=2, heads=2, intermediate=64)
    return ModelConfig(path=str(folder), device="cpu")


class EveryAction:
    """By coin: forks at tokens of ended turns and at tool results, stops siblings, and forks what scored 0."""

    needs = frozenset({Need.REWARDS, Need.LATE_EVENTS})

    def decide(self, event: BranchEvent, group: GroupView, rng: random.Random) -> Sequence[BranchAction]:
        match event:
            case Start():
                return [StartRoots(n=2)]
            case AfterTool(rollout=rollout, turn=turn) if group.budget_left and rng.random() < 0.5:
                last = group.rollout(rollout).turns[turn - 1].n_tokens
                return [Fork(rollout=rollout, turn=turn - 1, token=rng.randrange(1, last))] if last > 1 else []
            case FirstTokens(rollout=rollout):
                others = [r.id for r in group.rollouts if not r.finished and r.id != rollout]
                return [Stop(rollout=rng.choice(others))] if others and rng.random() < 0.1 else []
            case Scored(rollout=rollout, reward=0.0) if group.budget_left:
                turn = len(group.rollout(rollout).turns) - 1
                return [Fork(rollout=rollout, turn=turn)] if turn else []
        return []


async def even(rollout: Rollout) -> RolloutScore:
    return RolloutScore(reward=float(rollout.n_response_tokens % 2) if rollout.valid else None)


async def play(
    model: ModelConfig, timing_seed: int, policy: BranchPolicy | None = None
) -> tuple[list[Group], dict[str, float]]:
    timing = random.Random(timing_seed)
    encoder = Encoder(load_tokenizer(model))
    engine = TorchEngine(
        TorchEngineConfig(slots=12), model=load_model(model), encoder=encoder, max_tokens=200, deterministic=True
    )
    worker = RolloutWorker(
        engine=engine,
        encoder=encoder,
        step=CallsOften(),
        branch_policy=policy or RandomBranching(RandomBranchConfig(initial_rollouts=2, probability=0.6)),
        score=even,
        tools={"python": (echo_tool(delay_s=lambda call: timing.random() / 20), ToolConfig())},
        config=RolloutConfig(max_response_tokens=100, group_size=5, max_concurrent=12),
        system_prompt=SystemPrompt.NEVER,
        seed=1,
        deterministic=True,
    )
    try:
        groups = await worker.run(
            RolloutRequest(tasks=[Task(id=f"t{i}", prompt=prompt("2+2?" * (i + 1))) for i in range(3)], step=0)
        )
        return groups, {**worker.metrics(), **engine.metrics()}
    finally:
        await worker.close()
        await engine.close()


def bits(groups: list[Group]) -> list[Any]:
    return [
        (r.id, r.stop, [(bytes(s.token_ids), bytes(s.logprobs or b""), bytes(s.entropies or b"")) for s in r.segments])
        for group in groups
        for r in group.rollouts
    ]


def test_random_tool_latencies_change_not_a_bit(model: ModelConfig) -> None:
    (first, metrics), (second, _) = (asyncio.run(play(model, seed)) for seed in (1, 2))
    assert bits(first) == bits(second)
    assert all(len(group.valid) == 5 for group in first)
    assert metrics["engine/forks"] == metrics["rollout/forks_per_group"] * 3 > 0
    assert metrics["engine/recomputed_prefix_tokens"] <= metrics["engine/forks"]


def test_forks_at_tokens_stops_and_rewards_change_not_a_bit_either(model: ModelConfig) -> None:
    (first, metrics), (second, _) = (asyncio.run(play(model, seed, EveryAction())) for seed in (1, 2))
    assert bits(first) == bits(second)
    rollouts = [rollout for group in first for rollout in group.rollouts]
    assert len(rollouts) == 15
    assert {rollout.stop for rollout in rollouts} > {StopReason.PRUNED}
    assert any(rollout.fork_token for rollout in rollouts)
    assert any(rollout.fork_turn and not rollout.fork_token for rollout in rollouts)
    assert metrics["engine/recomputed_prefix_tokens"] <= metrics["engine/forks"]


@pytest.mark.parametrize(
    "policy",
    [
        ValueGuided(ValueGuidedConfig(initial_rollouts=2, failed_below=0.5)),
        TokenEntropy(TokenEntropyConfig(initial_rollouts=2, min_entropy=0.1)),
    ],
)
def test_policies_that_fork_elsewhere_change_not_a_bit_and_use_the_whole_budget(
    model: ModelConfig, policy: BranchPolicy
) -> None:
    (first, metrics), (second, _) = (asyncio.run(play(model, seed, policy)) for seed in (1, 2))
    assert bits(first) == bits(second)
    assert [len(group.rollouts) for group in first] == [5, 5, 5]
    assert metrics["rollout/forks_per_group"] >= 2
    at_tokens = [one for group in first for one in group.rollouts if one.fork_token]
    assert bool(at_tokens) == isinstance(policy, TokenEntropy)


async def play_through_an_update(model: ModelConfig) -> tuple[list[Group], dict[str, float], dict[int, Any]]:
    """The weights change in flight, when the first rollout calls a tool and others are sampling."""
    encoder = Encoder(load_tokenizer(model))
    models = {0: load_model(model), 1: changed_copy(load_model(model))}
    engine = TorchEngine(
        TorchEngineConfig(slots=12), model=load_model(model), encoder=encoder, max_tokens=200, in_flight=True
    )
    called = asyncio.Event()
    worker = RolloutWorker(
        engine=engine,
        encoder=encoder,
        step=CallsOften(),
        branch_policy=RandomBranching(RandomBranchConfig(initial_rollouts=2, probability=0.6)),
        tools={"python": (echo_tool(delay_s=lambda call: called.set() or 0.01), ToolConfig())},
        config=RolloutConfig(max_response_tokens=100, group_size=5, max_concurrent=12),
        system_prompt=SystemPrompt.NEVER,
        seed=1,
        deterministic=False,
    )
    tasks = [Task(id=f"t{i}", prompt=prompt("2+2?" * (i + 1))) for i in range(2)]
    try:
        playing = asyncio.create_task(
            worker.run(RolloutRequest(tasks=tasks, step=0), versions=Versions(0, lambda: engine.policy_version))
        )
        await called.wait()
        await engine.update_weights(models[1].state_dict().items(), 1)
        groups = await playing
        return groups, {**worker.metrics(), **engine.metrics()}, models
    finally:
        await worker.close()
        await engine.close()


def test_rollouts_go_on_under_new_weights_and_every_token_says_whose_it_is(model: ModelConfig) -> None:
    groups, metrics, models = asyncio.run(play_through_an_update(model))
    assert all(len(group.valid) == 5 for group in groups)
    assert metrics["rollout/mixed_version_share"] > 0
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        context = array("i")
        for segment in rollout.segments:
            if segment.is_sampled:
                request = Request(id="", token_ids=context[:], sampling=Sampling(max_tokens=1), seed=0)
                logprobs, _ = reference(models[segment.policy_version or 0], request, segment.token_ids)
                assert list(segment.logprobs or ()) == pytest.approx(logprobs, abs=1e-4)
            context.extend(segment.token_ids)
