"""Whether a written folder holds the model that it was made from: the same bits, and the same log-probabilities.

Both models go through the same plain forward pass, one sequence at a time, so a float32 folder agrees to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ramet.algorithms.logprobs import logprobs_from_logits
from ramet.config.schema import Dtype
from ramet.export.sequences import SampleSequence

THRESHOLDS = {Dtype.FLOAT32: 1e-5, Dtype.BFLOAT16: 1.0}  # the largest difference; a wrong weight costs several nats


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """|difference of log-probabilities| over the compared tokens."""

    n_sequences: int
    n_tokens: int
    largest: float
    mean: float
    threshold: float

    @property
    def passed(self) -> bool:
        return self.largest <= self.threshold  # NaN does not pass


def logprobs(model: PreTrainedModel, sequences: Sequence[SampleSequence], temperature: float) -> Tensor:
    """Of all compared tokens, one behind the other, float32."""
    found = []
    with torch.no_grad():
        for sequence in sequences:
            ids = torch.tensor(sequence.ids, device=model.device)
            positions = torch.tensor(sequence.sampled, device=model.device)
            logits = model(input_ids=ids[None], use_cache=False).logits[0]
            found.append(logprobs_from_logits(logits[positions - 1], ids[positions], temperature)[0].cpu())
    return torch.cat(found)


def compare(before: Tensor, after: Tensor, sequences: Sequence[SampleSequence], dtype: Dtype) -> Comparison:
    difference = (before - after).abs()
    return Comparison(
        n_sequences=len(sequences),
        n_tokens=len(difference),
        largest=float(difference.max()),
        mean=float(difference.mean()),
        threshold=THRESHOLDS[dtype],
    )


def different_weights(before: PreTrainedModel, after: PreTrainedModel) -> list[str]:
    """Names of weights that are not equal to the bit, or stand on one side only."""
    return different_tensors(before.state_dict(), after.state_dict())


def different_tensors(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> list[str]:
    """As `different_weights`."""
    return sorted(
        name
        for name in left.keys() | right.keys()
        if name not in left or name not in right or not torch.equal(left[name], right[name].to(left[name].device))
    )
