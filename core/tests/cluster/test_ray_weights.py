"""Weights that travel through Ray's object store. Needs no Ray."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from ramet.cluster.ray.weights import buckets, tensors
from ramet.engines.weight_chunks import CHUNK_BYTES


def test_weights_come_out_of_their_buckets_as_they_went_in():
    given = {
        "scalar": torch.tensor(3, dtype=torch.int64),
        "odd": torch.arange(5, dtype=torch.bfloat16),
        "transposed": torch.arange(6, dtype=torch.float32).reshape(2, 3).T,
        "none": torch.empty(0, 4),
        "large": torch.arange(100, dtype=torch.float64),
        "last": torch.ones(3, 3),
    }
    packed = list(buckets(given.items(), limit=64))
    assert [[piece.name for piece in bucket.pieces] for bucket in packed] == [
        ["scalar", "odd", "transposed", "none"], ["large"], ["last"],
    ]  # fmt: skip
    found = dict(tensors(packed))
    assert list(found) == list(given)
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    assert len(list(buckets(given.items()))) == 1 and CHUNK_BYTES >= 1 << 20
