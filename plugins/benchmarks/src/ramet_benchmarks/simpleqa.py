"""`simpleqa`: short facts of which models know few (Wei et al. 2024, arXiv 2411.04368).

The authors ask a judge for one of three grades; `judge` here is the share that is right, and an answer that is not
attempted is wrong. Without `judge.ask`, `em` and `f1` are low bounds.
"""

from __future__ import annotations

from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import short_answers
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm

ABOUT = Published(
    name="simpleqa",
    description="questions with one short, undisputed answer",
    source="https://github.com/openai/simple-evals (hub: basicv8vc/SimpleQA, 4,326 tasks), Wei et al. 2024",
    licence="MIT",
    n_tasks=500,
    contamination="on the web since October 2024, with answers; 14 of the 500 are in train_10k.parquet of ARPO",
    hub=HubData(name="basicv8vc/SimpleQA"),
    form=RowForm(question=("question", "problem"), answer=("answer", "golden_answers"), id=("id",)),
    folder="SimpleQA",
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, short_answers("simpleqa"))
