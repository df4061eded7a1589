"""One step's rows with what belongs to their tokens, cut to the axis of a micro-batch on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.policy.batching.batch import Floats, Row
from ramet.policy.objective import TokenInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class StepData:
    """Sequences hold one array per row, over its response."""

    rows: Sequence[Row]
    advantages: Sequence[Floats]
    old_logprobs: Sequence[Floats] | None
    ref_logprobs: Sequence[Floats] | None
    returns: Sequence[Floats] | None

    def has_signal(self, row: int) -> bool:
        """Whether any of its trained tokens has an advantage."""
        return bool(self.advantages[row][self.rows[row].mask].any())

    def inputs(self, chosen: Sequence[int], device: torch.device) -> TokenInputs:
        """The concatenated response axis of these rows."""
        rows = [self.rows[i] for i in chosen]

        def joined(arrays: Sequence[NDArray[Any]]) -> Tensor:
            return torch.from_numpy(np.concatenate(arrays)).to(device)

        def picked(arrays: Sequence[Floats] | None) -> Tensor | None:
            return None if arrays is None else joined([arrays[i] for i in chosen])

        lengths = [len(row.response_ids) for row in rows]
        return TokenInputs(
            advantages=joined([self.advantages[i] for i in chosen]),
            old_logprobs=picked(self.old_logprobs),
            engine_logprobs=joined([row.engine_logprobs for row in rows]),
            sequence_ids=joined([np.repeat(np.arange(len(rows)), lengths)]),
            group_ids=joined([np.repeat([row.group for row in rows], lengths)]),
            turn_ids=joined([row.turn_ids for row in rows]).long(),
            policy_versions=joined([row.policy_versions for row in rows]).long(),
            ref_logprobs=picked(self.ref_logprobs),
            returns=picked(self.returns),
        )
