"""Self-distillation with feedback, SDPO (Hübotter et al., arXiv 2601.20802).

    A_t = log pi(y_t | x, f, y_<t) - log pi_old(y_t | x, y_<t)

f is the feedback on the attempt: a solution of the same group, and the errors that its tools returned. The policy that
reads f is the teacher of the policy that does not. The gradient is the gradient of the paper's objective,
sum_t KL(pi(. | x, y_<t) || sg[pi(. | x, f, y_<t)]), estimated by the sampled tokens. A rollout without feedback has
advantages of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ramet import AdvantageInputs, AdvantageOutput, CallStatus, Need, Rollout
from ramet_distill.config import SdpoConfig
from ramet_distill.gaps import likelier, mean_of_tokens

SOLUTION = "\n\nThis is a correct solution:\n{}"
ERRORS = "\n\nAn earlier attempt had these errors:\n{}"
AGAIN = "\n\nNow solve the task."


class Sdpo:
    """Advantage estimator `sdpo`."""

    needs = frozenset({Need.RESCORED, Need.OLD_LOGPROBS})
    scope: Literal["batch", "group"] = "group"
    min_group = 1  # errors of tools are feedback also for a single rollout

    def __init__(self, config: SdpoConfig) -> None:
        self.config = config

    def contexts(self, group: Sequence[Rollout], rewards: Sequence[float]) -> list[str | None]:
        """Return the feedback on each rollout of one group; None where there is none."""
        solved = [i for i, reward in enumerate(rewards) if reward >= self.config.solved_from]
        texts: list[str | None] = []
        for i, rollout in enumerate(group):
            solution = next((group[j].response for j in solved if j != i), "")
            errors = self._errors(rollout)
            parts = [SOLUTION.format(solution[: self.config.max_chars])] if solution else []
            parts += [ERRORS.format(errors[: self.config.max_chars])] if errors else []
            texts.append("".join([*parts, AGAIN]) if parts else None)
        return texts

    def _errors(self, rollout: Rollout) -> str:
        if not self.config.tool_errors:
            return ""
        return "\n".join(call.text for call in rollout.tool_calls if call.status is CallStatus.ERROR)

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        advantages = likelier(batch, "sdpo", self.config.max_gap)
        assert batch.rescored_logprobs is not None
        given = (batch.mask & ~batch.rescored_logprobs.isnan()).any(1)
        metrics = {
            "advantage/feedback_share": float(given.float().mean()),
            "advantage/hindsight_kl": -mean_of_tokens(advantages, batch.mask),
        }
        return AdvantageOutput(advantages=advantages, metrics=metrics)
