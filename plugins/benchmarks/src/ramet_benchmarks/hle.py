"""`hle`: Humanity's Last Exam (Phan et al. 2025, arXiv 2501.14249), the questions without an image.

The authors ask a judge, also for how sure the model was, which is not measured here. Without `judge.ask`, `em`: the
right letter of a multiple choice, otherwise equality to the gold answer, mathematical or literal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ramet import Reward, Rollout, Score
from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import reward_of
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm

_LETTER = re.compile("[A-Z]")
MULTIPLE_CHOICE = "multipleChoice"  # value of the column `answer_type`; the other one is exactMatch

ABOUT = Published(
    name="hle",
    description="questions at the frontier of academic knowledge; exact answers and multiple choices",
    source="https://lastexam.ai (hub: cais/hle, 2,500 tasks), Phan et al. 2025",
    licence="MIT; gated, and its authors ask not to publish it again",
    n_tasks=500,
    contamination="pages that discuss it have answers, which a search can find; 100 tasks are hle_test.parquet of "
    "ARPO, which was used to choose checkpoints",
    hub=HubData(name="cais/hle", gated=True),
    form=RowForm(
        question=("question", "Question"),
        id=("id",),
        metadata=("answer_type", "category"),
        wanted=lambda row: not row.get("image"),
    ),
)


class ExactOrChoice:
    """Two rewards, chosen by the kind of question."""

    per_rollout = True

    def __init__(self, choice: Reward, exact: Reward) -> None:
        self._choice = choice
        self._exact = exact

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        task = group[0].task
        kind = task.metadata.get("answer_type")  # imported outputs have none: there a letter is a choice
        is_choice = kind == MULTIPLE_CHOICE if kind is not None else _LETTER.fullmatch(task.answer[0]) is not None
        return await (self._choice if is_choice else self._exact)(group)

    async def aclose(self) -> None:
        for reward in (self._choice, self._exact):
            if (aclose := getattr(reward, "aclose", None)) is not None:
                await aclose()


def make(config: PublishedConfig) -> PublishedBenchmark:
    exact = ExactOrChoice(reward_of("multiple_choice", ABOUT.name), reward_of("math", ABOUT.name))
    return PublishedBenchmark(ABOUT, config, {"em": exact})
