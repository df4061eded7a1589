from __future__ import annotations

from random import Random

import pytest

from ramet.data.sampler import Sampler
from ramet.errors import ConfigError


def cases(number: int = 60) -> list[tuple[int, int, int]]:
    rng = Random(0)
    sizes = [rng.randint(1, 40) for _ in range(number)]
    return [(n, rng.randint(1, n), rng.randint(0, 9)) for n in sizes]


def stream(sampler: Sampler, steps: int) -> list[int]:
    return [index for step in range(steps) for index in sampler.batch(step)]


@pytest.mark.parametrize("shuffle", [True, False])
def test_no_task_comes_twice_or_is_lost_within_an_epoch(shuffle: bool):
    for n, k, seed in cases():
        indices = stream(Sampler(n, k, seed, shuffle), steps=4 * n // k + 1)
        for start in range(0, len(indices) - n + 1, n):
            assert sorted(indices[start : start + n]) == list(range(n))


def test_a_batch_is_full_and_holds_no_task_twice_also_across_epochs():
    for n, k, seed in cases():
        sampler = Sampler(n, k, seed)
        for step in range(4 * n // k + 2):
            assert len(set(sampler.batch(step))) == k


def test_a_step_depends_on_nothing_but_its_number():
    for n, k, seed in cases(20):
        steps = list(range(3 * n // k + 2))
        wanted = [Sampler(n, k, seed).batch(step) for step in steps]
        one = Sampler(n, k, seed)
        mixed = Random(seed).sample(steps, len(steps))
        assert {step: one.batch(step) for step in mixed} == dict(zip(steps, wanted, strict=True))


def test_seeds_and_epochs_give_different_orders():
    assert Sampler(50, 10, 1).order(0) != Sampler(50, 10, 2).order(0)
    sampler = Sampler(50, 10, 1)
    assert sampler.order(0) != sampler.order(1)


def test_the_order_of_a_seed_is_fixed_forever():
    assert Sampler(8, 4, 1).batch(0) == FIRST


def test_without_shuffling_the_order_is_that_of_the_files():
    assert stream(Sampler(5, 2, 1, shuffle=False), steps=5) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("tasks_per_step", [0, 6])
def test_a_step_cannot_need_more_tasks_than_there_are(tasks_per_step: int):
    with pytest.raises(ConfigError, match=f"train.tasks_per_step={tasks_per_step}: the data set has 5 tasks"):
        Sampler(5, tasks_per_step, 1)


FIRST = [5, 1, 4, 7]
