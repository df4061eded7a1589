from __future__ import annotations

from ramet.rollout.keys import RolloutKey, branch_rng, path_of, path_text, request_seed, stable_seed


def test_seeds_are_the_same_in_every_process() -> None:
    """Worked out once, elsewhere: runs that are resumed on another machine must draw the same."""
    assert stable_seed("request", 1, "train", 0, "t", "0", 0) == 5528336357919735455
    assert request_seed(1, RolloutKey("train", 0, "t", "0"), 0) == 5528336357919735455


def test_a_key_is_read_back_from_its_text_whatever_the_tasks_id() -> None:
    for task in ("t", "gsm8k/train/7", "a#1", "päth"):
        key = RolloutKey("train", 12, task, "0.10.2")
        assert RolloutKey.parse(str(key)) == key


def test_paths_and_texts_are_inverse() -> None:
    assert path_of("0.10.2") == (0, 10, 2)
    assert path_text((0, 10, 2)) == "0.10.2"


def test_every_part_of_a_name_changes_the_seed() -> None:
    key = RolloutKey("train", 1, "t", "0")
    seeds = {
        request_seed(seed, RolloutKey(salt, step, task, path), turn)
        for seed in (1, 2)
        for salt in ("train", "valid")
        for step in (1, 2)
        for task in ("t", "u")
        for path in ("0", "0.0")
        for turn in (0, 1)
    }
    assert len(seeds) == 64
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert branch_rng(1, key, "FirstTokens", 1).random() != branch_rng(1, key, "AfterTool", 1).random()


def test_parts_do_not_run_into_each_other() -> None:
    assert stable_seed("ab", "c") != stable_seed("a", "bc")
