"""Optimiser steps: every example once a pass, the same on all ranks, in passes of at most a budget of tokens."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ramet.config.schema import Config
from ramet.planning.memory_sft import SftInputs
from ramet.policy.batching.packing import Cost, model_cost
from ramet.sft.batches import ExampleRow, StepBatch, StepPacker, StepSampler, fed_by_step
from ramet.sft.encode import Example
from ramet.sft.world import World

COST = Cost(token=600.0, pair=1.0, best_tokens=2048)


def example(seed: int, longest: int = 60) -> Example:
    """Prompt and reply; a part of the reply is masked. Its tokens are those of no other example."""
    rng = random.Random(seed)
    prompt, reply = rng.randrange(1, longest // 2), rng.randrange(1, longest // 2)
    trained = [0] * prompt + [int(rng.random() < 0.7) for _ in range(reply - 1)] + [1]
    return Example(token_ids=array("i", range(100 * seed, 100 * seed + prompt + reply)), trained=array("b", trained))


def packed(examples: list[Example], *, ranks: int, budget: int, flash: bool) -> list[StepBatch]:
    """What every rank computes."""
    worlds = [World(rank=rank, size=ranks) for rank in range(ranks)]
    cost = None if flash else COST
    return [StepPacker(budget=budget, world=world, cost=cost, row_cost=COST)(examples) for world in worlds]


def test_an_example_is_a_row_whose_first_token_is_its_prompt() -> None:
    row = ExampleRow.of(Example(token_ids=array("i", [5, 6, 7]), trained=array("b", [0, 0, 1]), where="a.jsonl, row 1"))
    assert (row.prompt_ids.tolist(), row.response_ids.tolist(), row.mask.tolist()) == ([5], [6, 7], [False, True])
    assert (row.n_tokens, row.where) == (3, "a.jsonl, row 1")


def test_a_pass_holds_every_example_once_and_another_pass_another_order() -> None:
    sampler = StepSampler(10, per_step=4, seed=1)
    first = list(sampler)
    assert [len(step) for step in first] == [4, 4, 2] and len(sampler) == 3
    assert sorted(index for step in first for index in step) == list(range(10))
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_the_plan_is_given_the_lengths_of_the_steps_that_the_training_takes() -> None:
    examples, config = [example(seed) for seed in range(10)], Config()
    config.sft.sequences_per_step, config.run.seed = 4, 5
    sampler = StepSampler(10, per_step=4, seed=5)
    wanted = []
    for number in range(2):
        sampler.set_epoch(number)
        wanted += [[len(examples[i]) - 1 for i in step] for step in sampler]
    assert fed_by_step(examples, config, 5) == wanted[:5]
    assert fed_by_step(examples, config, 2) == wanted[:2]


@pytest.mark.parametrize("strategy", ["none", "fsdp"])
def test_the_plan_counts_the_most_positions_that_a_rank_feeds(
    strategy: str, sft_inputs: Callable[..., SftInputs]
) -> None:
    """Two ranks with `fsdp`."""
    inputs, examples = sft_inputs(strategy), [example(seed, longest=500) for seed in range(48)]
    cost = model_cost(inputs.shape.hidden, torch.device("cpu"))
    budget, fed = inputs.config.sft.max_microbatch_tokens, []
    for indices in StepSampler(48, per_step=16, seed=inputs.config.run.seed):
        for rank in range(inputs.ranks):
            world = World(rank=rank, size=inputs.ranks)
            packer = StepPacker(budget=budget, world=world, cost=cost, row_cost=cost)
            fed += [batch.input_ids.numel() for batch in packer([examples[i] for i in indices]).micro_batches]
    steps = fed_by_step(examples, inputs.config, 3)
    assert replace(inputs, steps=steps).model.tokens == max(fed)


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_trained_token_is_predicted_once_over_all_ranks_and_passes(ranks: int, flash: bool) -> None:
    examples = [example(seed) for seed in range(23)]
    steps = packed(examples, ranks=ranks, budget=128, flash=flash)
    wanted = sorted(
        token for one in examples for token, trained in zip(one.token_ids, one.trained, strict=True) if trained
    )
    found = [token for step in steps for batch in step.micro_batches for token in batch.targets.tolist()]
    assert sorted(found) == wanted
    assert {step.n_trained for step in steps} == {len(wanted)}
    for batch in (batch for step in steps for batch in step.micro_batches):
        fed = batch.input_ids.flatten()[batch.predict]
        assert (fed + 1 == batch.targets).all()  # tokens of an example go up by one: each is predicted from its last
        assert batch.input_ids.numel() <= 128
    assert sum(step.n_tokens for step in steps) == sum(len(one) - 1 for one in examples)


def test_packing_pads_nothing_and_rows_of_their_own_little() -> None:
    examples = [example(seed) for seed in range(40)]
    (dense,), (own,) = (packed(examples, ranks=1, budget=512, flash=flash) for flash in (True, False))
    assert dense.n_positions == dense.n_tokens == own.n_tokens
    assert own.n_tokens < own.n_positions < 1.1 * own.n_tokens


def test_ranks_make_as_many_passes_and_share_the_work(ranks: int = 3) -> None:
    """One example is as long as all others together: its rank has it alone, and the others make as many passes."""
    long = Example(token_ids=array("i", range(300)), trained=array("b", [0] * 299 + [1]))
    steps = packed([long, *(example(seed, longest=20) for seed in range(30))], ranks=ranks, budget=300, flash=True)
    assert len({len(step.micro_batches) for step in steps}) == 1
    busy = [step.n_tokens for step in steps]
    assert max(busy[1:]) < 1.3 * min(busy[1:]) and busy[0] == 299


def test_a_rank_without_an_example_passes_something_that_is_not_trained() -> None:
    first, second = packed([example(1)], ranks=2, budget=64, flash=False)
    assert len(first.micro_batches) == len(second.micro_batches) == 1
    assert (second.n_tokens, second.n_positions, len(second.micro_batches[0].targets)) == (0, 1, 0)
    assert second.n_trained == first.n_trained > 0
