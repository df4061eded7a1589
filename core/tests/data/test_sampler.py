from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest

from ramet.data.sampler import Sampler
from ramet.errors import ConfigError, ConfigErrors


def cases(number: int = 60) -> list[tuple[int, int, int]]:
    rng = Random(0)
    sizes = [rng.randint(1, 40) for _ in range(number)]
    return [(n, rng.randint(1, n), rng.randint(0, 9)) for n in sizes]


def stream(sampler: Sampler, k: int, steps: int) -> list[int]:
    return [index for _ in range(steps) for index in sampler.draw(k)]


@pytest.mark.parametrize("shuffle", [True, False])
def test_no_task_comes_twice_or_is_lost_within_an_epoch(shuffle: bool):
    for n, k, seed in cases():
        indices = stream(Sampler(n, k, seed, shuffle), k, steps=4 * n // k + 1)
        for start in range(0, len(indices) - n + 1, n):
            assert sorted(indices[start : start + n]) == list(range(n))


def test_a_step_is_full_and_holds_no_task_twice_also_across_epochs():
    for n, k, seed in cases():
        sampler = Sampler(n, k, seed)
        for _ in range(4 * n // k + 2):
            assert len(set(sampler.draw(k))) == k


def test_a_restored_sampler_draws_what_the_first_would_have_drawn():
    for n, k, seed in cases(20):
        sampler, rng = Sampler(n, k, seed), Random(seed)
        for _ in range(5):
            step = sampler.draw(k)
            sampler.draw(rng.randint(0, k), step)
            again = Sampler(n, k, seed)
            again.restore(json.loads(json.dumps(sampler.state())))
            assert again.draw(k) == sampler.draw(k)
            assert again.state() == sampler.state()


def test_more_tasks_of_a_step_are_others_until_there_are_none():
    sampler = Sampler(5, 3, 1)
    step = sampler.draw(3)
    more = sampler.draw(4, step)
    assert sorted(step + more) == [0, 1, 2, 3, 4]
    assert sampler.draw(1, step + more) == []
    assert sorted(sampler.draw(5)) == [0, 1, 2, 3, 4]


def test_what_a_step_passed_over_comes_first_in_the_next():
    sampler = Sampler(4, 3, 1, shuffle=False)
    assert [sampler.draw(3), sampler.draw(3)] == [[0, 1, 2], [3, 0, 1]]
    assert sampler.draw(1, taken=[2, 3]) == [0]  # 2 and 3 end the second epoch, 0 begins the third
    assert sampler.draw(3) == [2, 3, 1]


def test_seeds_and_epochs_give_different_orders():
    one = Sampler(50, 10, 1)
    first = one.draw(50)
    assert first != Sampler(50, 10, 2).draw(50)
    assert first != one.draw(50)


def test_the_order_of_a_seed_is_fixed_forever():
    assert Sampler(8, 4, 1).draw(4) == [5, 1, 4, 7]


def test_without_shuffling_the_order_is_that_of_the_files():
    assert stream(Sampler(5, 2, 1, shuffle=False), 2, steps=5) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("tasks_per_step", [0, 6])
def test_a_step_cannot_need_more_tasks_than_there_are(tasks_per_step: int):
    with pytest.raises(ConfigError, match=f"train.tasks_per_step={tasks_per_step}: the data set has 5 tasks"):
        Sampler(5, tasks_per_step, 1)


SOURCES = ["maths"] * 6 + ["qa"] * 30


def test_weights_hold_over_every_run_of_steps_and_sources_keep_their_epochs():
    sampler = Sampler(36, 4, 1, sources=SOURCES, weights={"maths": 3.0, "qa": 1.0})
    drawn = stream(sampler, 4, steps=12)
    for steps in range(1, 13):
        assert Counter(SOURCES[i] for i in drawn[: 4 * steps]) == {"maths": 3 * steps, "qa": steps}
    maths = [i for i in drawn if SOURCES[i] == "maths"]
    assert all(sorted(maths[start : start + 6]) == list(range(6)) for start in range(0, 36, 6))
    assert len({i for i in drawn if SOURCES[i] == "qa"}) == 12


def test_a_source_of_weight_nothing_is_never_drawn_and_one_that_is_used_up_lends_its_share():
    sampler = Sampler(36, 4, 1, sources=SOURCES, weights={"maths": 0.0, "qa": 1.0})
    assert {SOURCES[i] for i in stream(sampler, 4, steps=30)} == {"qa"}
    sampler = Sampler(36, 4, 1, sources=SOURCES, weights={"maths": 1.0, "qa": 1.0})
    step = sampler.draw(20)
    assert Counter(SOURCES[i] for i in step) == {"maths": 6, "qa": 14}


def test_weights_that_do_not_fit_the_data_are_refused_together():
    with pytest.raises(ConfigErrors) as found:
        Sampler(36, 10, 1, sources=SOURCES, weights={"maths": 9.0, "code": 1.0})
    assert found.value.problems == [
        "data.weights.code: the data has no such source; it has maths, qa",
        "data.weights.maths=9: a share of 0.9 of train.tasks_per_step=10 is more than the 6 tasks of this source",
        "data.weights: has no weight for data source 'qa'; give one, 0 to leave it out",
    ]
    with pytest.raises(ConfigErrors, match=r"a share of 0\.5 of train\.budget_tasks=14 is more than the 6 tasks"):
        Sampler(36, 14, 1, sources=SOURCES, weights={"maths": 1.0, "qa": 1.0}, key="train.budget_tasks")


def test_a_state_of_other_sources_is_refused():
    with pytest.raises(ConfigError) as found:
        Sampler(36, 4, 1, sources=SOURCES, weights={"maths": 1.0, "qa": 1.0}).restore(Sampler(36, 4, 1).state())
    assert (
        str(found.value)
        == "data.weights: the checkpoint drew from all data alike, this run draws from weighted maths, qa"
    )


def test_a_curriculum_goes_from_easy_to_hard_in_every_epoch_and_shuffles_what_is_equally_hard():
    levels = [3.0, 1.0, 2.0, 1.0, 3.0, 1.0, 2.0, 2.0]
    sampler = Sampler(8, 4, 1, difficulty=levels)
    epochs = [stream(sampler, 4, steps=2) for _ in range(4)]
    assert all([levels[i] for i in epoch] == sorted(levels) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_other_weights_hold_from_the_restored_step_on() -> None:
    """What was drawn under the old ones is not made up for: that would be many steps of one source alone."""
    sampler = Sampler(36, 4, 1, sources=SOURCES, weights={"maths": 1.0, "qa": 1.0})
    stream(sampler, 4, steps=50)
    later = Sampler(36, 4, 1, sources=SOURCES, weights={"maths": 1.0, "qa": 3.0})
    later.restore(json.loads(json.dumps(sampler.state())))
    for _ in range(5):
        assert Counter(SOURCES[index] for index in later.draw(4)) == {"maths": 1, "qa": 3}
