"""Whether a written folder holds the model that it was made from: the same bits, and the same log-probabilities.

They are compared on sequences that the run recorded. Both models go through the same plain forward pass, one sequence
at a time, in the type of the folder: what rounding the weights to bfloat16 changes is reported and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ramet.algorithms.logprobs import logprobs_from_logits
from ramet.config.schema import Dtype
from ramet.rollout.record import read_records
from ramet.rollout.record_files import recorded_files
from ramet.types import Rollout

# The largest difference between two models of equal weights in this type; a folder that computes other numbers is off
# by several nats.
THRESHOLDS = {Dtype.FLOAT32: 1e-5, Dtype.BFLOAT16: 0.05}
COUNT = 4
LONGEST = 2048  # tokens; the rest is cut off, which changes nothing before it
RANDOM = 64  # tokens of a made-up sequence
TEXT = "In 2026: 12,345.67 + 89 = 12434.67?\n\t  Don't  – «naïve» 日本語 🙂\r\n  <b>x</b> "


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSequence:
    ids: list[int]
    sampled: list[int]  # positions of the tokens whose log-probabilities are compared; never 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """|difference of log-probabilities| over the compared tokens, in nats."""

    n_sequences: int
    n_tokens: int
    largest: float  # between the folder and the trained policy in float32
    mean: float
    read_back: float  # the largest between the folder and the same weights before they were written
    threshold: float  # of `read_back`

    @property
    def passed(self) -> bool:
        return self.read_back <= self.threshold  # NaN does not pass


def recorded_sequences(run: Path, step: int) -> list[SampleSequence]:
    """A few rollouts of the last step up to `step` that has some; empty if the run kept none."""
    files = {file.step: file.path for file in recorded_files(run) if file.kind == "step"}
    for number in sorted((number for number in files if number <= step), reverse=True):
        rollouts = (scored.rollout for record in read_records(files[number]) for scored in record.group.rollouts)
        usable = [sequence for sequence in map(_sequence, rollouts) if sequence.sampled]
        if usable:
            return usable[:: max(1, len(usable) // COUNT)][:COUNT]
    return []


def random_sequences(vocab_size: int) -> list[SampleSequence]:
    """The same ones for the same vocabulary."""
    rng = Random(0)
    return [
        SampleSequence(ids=[rng.randrange(vocab_size) for _ in range(RANDOM)], sampled=list(range(1, RANDOM)))
        for _ in range(COUNT)
    ]


def logprobs(model: PreTrainedModel, sequences: Sequence[SampleSequence], temperature: float) -> Tensor:
    """Return log-probabilities of all compared tokens, sequence after sequence: [tokens], float32."""
    per_sequence = []
    with torch.no_grad():
        for sequence in sequences:
            ids = torch.tensor(sequence.ids, device=model.device)
            positions = torch.tensor(sequence.sampled, device=model.device)
            logits = model(input_ids=ids[None], use_cache=False).logits[0]
            per_sequence.append(logprobs_from_logits(logits[positions - 1], ids[positions], temperature)[0].cpu())
    return torch.cat(per_sequence)


def compare(
    before: Tensor, written: Tensor, after: Tensor, sequences: Sequence[SampleSequence], dtype: Dtype
) -> Comparison:
    """Compare log-probabilities: of the trained policy, of its weights in `dtype`, and of the folder read back."""
    difference = (before - after).abs()
    return Comparison(
        n_sequences=len(sequences),
        n_tokens=len(difference),
        largest=float(difference.max()),
        mean=float(difference.mean()),
        read_back=float((written - after).abs().max()),
        threshold=THRESHOLDS[dtype],
    )


def different_weights(before: PreTrainedModel, after: PreTrainedModel) -> list[str]:
    """Names of weights that are not equal to the bit, or are on one side only."""
    return different_tensors(before.state_dict(), after.state_dict())


def different_tensors(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> list[str]:
    """Return the names that `different_weights` returns, for tensors by name."""
    return sorted(
        name
        for name in left.keys() | right.keys()
        if name not in left or name not in right or not torch.equal(left[name], right[name].to(left[name].device))
    )


def same_tokens(before: PreTrainedTokenizerBase, after: PreTrainedTokenizerBase) -> bool:
    """Whether two tokenizers have vocabularies of one size, and cut a text that is hard to cut alike."""
    return len(before) == len(after) and before.encode(TEXT) == after.encode(TEXT)


def _sequence(rollout: Rollout) -> SampleSequence:
    ids: list[int] = []
    sampled: list[int] = []
    for segment in rollout.segments:
        if segment.is_sampled:
            sampled.extend(range(len(ids), len(ids) + len(segment)))
        ids.extend(segment.token_ids)
    return SampleSequence(ids=ids[:LONGEST], sampled=[position for position in sampled if 0 < position < LONGEST])
