"""The tiny batches hold what trips algorithms, and are what the contract says."""

from __future__ import annotations

import torch

from ramet import Need
from ramet.testing import tiny_batch, tiny_loss_batch


def test_the_same_seed_gives_the_same_batch() -> None:
    assert torch.equal(tiny_batch(3).old_logprobs, tiny_batch(3).old_logprobs)
    assert not torch.equal(tiny_batch(3).old_logprobs, tiny_batch(4).old_logprobs)


def test_groups_are_ragged_and_rows_end_at_different_lengths() -> None:
    batch = tiny_batch(0)
    assert batch.group_ids.bincount().unique().numel() > 1
    assert batch.mask.sum(1).unique().numel() > 1


def test_a_fork_shares_its_parents_values_up_to_its_fork_position() -> None:
    batch = tiny_batch(0)
    forks = (batch.parent >= 0).nonzero().squeeze(1).tolist()
    assert forks
    for row in forks:
        shared = slice(0, int(batch.fork_position[row]))
        assert torch.equal(batch.old_logprobs[row, shared], batch.old_logprobs[batch.parent[row], shared])


def test_forks_of_a_masked_rollout_are_told_by_the_nodes_that_they_share() -> None:
    batch = tiny_batch(0)
    orphans = ((batch.parent < 0) & (batch.fork_position > 0)).nonzero().squeeze(1).tolist()
    first, second = orphans
    same = (batch.node_ids[first] == batch.node_ids[second]) & (batch.node_ids[first] >= 0)
    assert same.nonzero().squeeze(1).tolist() == list(range(int(batch.fork_position[first])))
    inside = batch.node_ids[batch.turn_ids >= 0]
    copies = [int(batch.fork_position[row]) for row in range(len(batch.stop)) if batch.parent[row] >= 0]
    assert len(inside.unique()) == len(inside) - sum(copies) - int(batch.fork_position[second])
    assert (batch.node_ids[batch.turn_ids < 0] == -1).all()


def test_only_needed_fields_are_filled() -> None:
    batch = tiny_batch(0, {Need.ENTROPY})
    assert batch.entropies is not None
    assert batch.old_logprobs is batch.ref_logprobs is None and batch.values is None and batch.greedy_rewards is None


def test_the_packed_batch_holds_the_same_sampled_tokens() -> None:
    padded, packed = tiny_batch(2), tiny_loss_batch(2)
    assert torch.equal(packed.old_logprobs[packed.mask], padded.old_logprobs[padded.mask])
    assert packed.logprobs.requires_grad and packed.logprobs.is_leaf
    assert not packed.mask.all()
