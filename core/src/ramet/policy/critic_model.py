"""The value model: the policy's architecture and first weights, with one number per token instead of one per word.

The head begins at 0, so that the first values are 0 and the first advantages plain returns; noise would only have to be
unlearned. Weights are float32 or gathered in bfloat16 as the policy's are, but the head multiplies in float32: three
digits are too few for a return.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import linear
from transformers import PreTrainedModel

from ramet.policy.batching.packing import MicroBatch
from ramet.policy.distributed.ulysses import join, ulysses_states
from ramet.policy.forward import hidden_states


class ValueModel(nn.Module):
    """Takes `model`'s output head away. `group` are the ranks that share each sequence; None: each has its own."""

    def __init__(self, model: PreTrainedModel, group: ProcessGroup | None = None) -> None:
        super().__init__()
        model.set_output_embeddings(_zero_head(model))  # type: ignore[no-untyped-call]
        model.config.tie_word_embeddings = False  # the head is no longer the embeddings
        self.model = model
        self.group = group

    def forward(self, batch: MicroBatch) -> Tensor:
        """`[T]` float32 on the response axis: the value before each sampled token; 0 where nothing was sampled.

        It stands where that token is predicted, and so knows nothing of it.
        """
        if self.group is None:
            values = self._values(hidden_states(self.model, batch).flatten(0, 1)[batch.predict])
        else:
            states, own = ulysses_states(self.model, batch.input_ids, batch.position_ids, batch.predict, self.group)
            values = join(self._values(states), own, len(batch.targets), self.group)
        return values.new_zeros(sum(batch.lengths)).index_put((batch.response,), values)

    def _values(self, states: Tensor) -> Tensor:
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        with torch.autocast(states.device.type, enabled=False):
            return linear(states.float(), head.weight.float()).squeeze(-1)


def _zero_head(model: PreTrainedModel) -> nn.Linear:
    head = nn.Linear(model.config.hidden_size, 1, bias=False, device=model.device)
    nn.init.zeros_(head.weight)
    return head
