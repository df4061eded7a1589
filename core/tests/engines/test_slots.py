"""Which slot a request gets, and which prefix."""

from __future__ import annotations

import numpy as np

from ramet.engines.torch.slots import CacheSlot, SlotTable, Tokens


def tokens(text: str) -> Tokens:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def start(table: SlotTable, text: str, key: str, fork_of: str = "") -> CacheSlot | None:
    """Place a request and compute its whole prompt."""
    target = table.find(tokens(text), key, fork_of)
    if target is not None:
        table.occupy(target, tokens(text), key)
        table.valid[target.slot] = len(text)
    return target


def finish(table: SlotTable, target: CacheSlot | None) -> None:
    assert target is not None
    table.vacate(target.slot)


def test_a_key_gets_its_own_slot_back_with_what_it_shares() -> None:
    table = SlotTable(4, 64, deterministic=False)
    finish(table, start(table, "hello world", "a"))
    assert table.find(tokens("hello world, again"), "a", "") == CacheSlot(0, 0, 11, 7)


def test_a_fork_copies_all_but_the_last_token() -> None:
    table = SlotTable(4, 64, deterministic=False)
    start(table, "hello world and more", "a")
    assert table.find(tokens("hello world"), "b", "a") == CacheSlot(1, 0, 10, 1)


def test_the_longest_idle_slot_is_taken_when_none_is_free() -> None:
    table = SlotTable(4, 64, deterministic=False)
    targets = [start(table, text * 3, text) for text in "abcd"]
    for target in (targets[2], targets[0], targets[1], targets[3]):
        finish(table, target)
    taken = start(table, "new", "new")
    assert taken is not None and taken.slot == 2
    assert not table.holds("c") and table.holds("a")


def test_a_request_waits_when_every_slot_is_busy() -> None:
    table = SlotTable(4, 64, deterministic=False)
    for text in "abcd":
        start(table, text, text)
    assert table.find(tokens("new"), "new", "") is None


def test_a_request_waits_for_a_long_prefix_that_is_being_computed() -> None:
    table = SlotTable(4, 64, deterministic=False)
    prompt = "a prompt of some length, for all"
    target = start(table, prompt, "a")
    assert target is not None
    table.valid[target.slot] = 3
    assert table.find(tokens(prompt), "b", "") is None
    assert table.find(tokens("another prompt"), "b", "") is not None
    table.valid[target.slot] = len(prompt) - 1
    assert table.find(tokens(prompt), "b", "") == CacheSlot(1, 0, len(prompt) - 1, len(prompt) - (len(prompt) - 1))


def test_a_released_slot_still_gives_its_prefix() -> None:
    table = SlotTable(4, 64, deterministic=False)
    finish(table, start(table, "hello world", "a"))
    table.release("a")
    table.release("unknown")
    assert table.find(tokens("hello there"), "b", "") == CacheSlot(0, 0, 6, 5)


def test_a_deterministic_table_never_takes_a_slot_from_its_key() -> None:
    table = SlotTable(4, 64, deterministic=True)
    for text in "abcd":
        finish(table, start(table, text, text))
    assert table.find(tokens("new"), "new", "") is None
    table.release("b")
    assert table.find(tokens("new"), "new", "") is not None


def test_a_deterministic_table_shares_whole_prompts_and_forks_only() -> None:
    table = SlotTable(4, 64, deterministic=True)
    start(table, "hello world", "a")
    assert table.find(tokens("hello world"), "b", "") == CacheSlot(1, 0, 10, 1)
    assert table.find(tokens("hello there"), "b", "") == CacheSlot(1, 1, 0, 11)
    assert table.find(tokens("hello there"), "b", "a") == CacheSlot(1, 0, 6, 0)


def test_a_prompt_that_was_aborted_is_not_shared_as_a_whole() -> None:
    table = SlotTable(4, 64, deterministic=True)
    target = start(table, "hello world", "a")
    assert target is not None
    table.valid[target.slot] = 4
    finish(table, target)
    assert table.find(tokens("hello world"), "b", "") == CacheSlot(1, 1, 0, 11)
