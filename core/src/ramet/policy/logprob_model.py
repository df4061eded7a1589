"""The policy as one module: body, output head and log-probabilities in a single forward pass.

The head is used on chosen positions only (`forward.py`), outside the model's own forward. FSDP gathers weights where a
module's forward begins, so what is sharded must begin here; then tied embeddings are one parameter of one group too.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers import PreTrainedModel

from ramet.algorithms.logprobs import Entropy
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.forward import TokenScores, score_tokens


class LogprobModel(nn.Module):
    """`group` are the ranks that share each sequence (Ulysses); None: each rank has its own."""

    def __init__(self, model: PreTrainedModel, group: ProcessGroup | None = None) -> None:
        super().__init__()
        self.model = model
        self.group = group

    def forward(self, batch: MicroBatch, temperature: float, entropy: Entropy) -> tuple[Tensor, Tensor | None, Tensor]:
        """The fields of `TokenScores`: FSDP finds tensors in tuples, not in our classes."""
        scores = score_tokens(self.model, batch, temperature, entropy, self.group)
        return scores.logprobs, scores.entropies, scores.mask

    def score(self, batch: MicroBatch, temperature: float, entropy: Entropy) -> TokenScores:
        logprobs, entropies, mask = self(batch, temperature, entropy)
        return TokenScores(logprobs=logprobs, entropies=entropies, mask=mask)
