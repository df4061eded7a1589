from __future__ import annotations

from array import array

import torch

from ramet.sft.batches import EMPTY, IGNORED, Collator, EvenShuffle, Examples
from ramet.sft.encode import Example


def example(ids: list[int], trained: list[int]) -> Example:
    return Example(token_ids=array("i", ids), trained=array("b", trained))


def test_a_batch_is_padded_on_the_right_to_a_multiple_of_eight() -> None:
    batch = Collator(pad_id=0)([example([5, 6, 7], [0, 1, 1]), example(list(range(1, 10)), [1] * 9)])
    assert batch["input_ids"].shape == (2, 16)
    assert batch["input_ids"][0].tolist() == [5, 6, 7] + [0] * 13
    assert batch["input_ids"][1].tolist() == [*range(1, 10)] + [0] * 7


def test_labels_stand_only_on_trained_tokens() -> None:
    batch = Collator(pad_id=0)([example([5, 6, 7, 8], [0, 1, 0, 1])])
    assert batch["labels"][0].tolist() == [-100, 6, -100, 8] + [-100] * 4


def test_a_batch_that_fits_is_not_padded_and_owns_its_memory() -> None:
    source = example([1] * 8, [1] * 8)
    batch = Collator(pad_id=0)([source])
    batch["input_ids"].fill_(9)
    assert batch["input_ids"].shape == (1, 8)
    assert source.token_ids.tolist() == [1] * 8
    assert batch["labels"].dtype == torch.int64


def test_a_pass_over_several_ranks_holds_every_example_once_and_is_filled_with_nothing() -> None:
    sampler = EvenShuffle(10, multiple=4, seed=1)
    first = list(sampler)
    assert len(sampler) == len(first) == 12
    assert sorted(first[:10]) == list(range(10))
    assert first[10:] == [10, 10]
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_what_fills_a_batch_has_no_label() -> None:
    examples = Examples([example([1, 2], [0, 1])])
    assert len(examples) == 1
    assert examples[1] == EMPTY
    batch = Collator(pad_id=0)([examples[1], examples[1]])
    assert batch["labels"].tolist() == [[IGNORED] * 8] * 2
