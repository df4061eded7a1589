"""`bamboogle`: questions over two pages that a search for the full question does not answer (Press et al. 2023, arXiv
2210.03350), with exact match and F1. The authors judged by hand.
"""

from __future__ import annotations

from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import short_answers
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm

ABOUT = Published(
    name="bamboogle",
    description="125 questions of two hops that no single page answers; short answers",
    source="https://github.com/ofirpress/self-ask (hub: chiayewken/bamboogle), Press et al. 2023",
    licence="MIT",
    n_tasks=125,
    contamination="on the web since 2022; 20 are in valid.parquet of ARPO",
    hub=HubData(name="chiayewken/bamboogle"),
    form=RowForm(question=("question", "Question"), answer=("answer", "golden_answers", "Answer"), id=("id",)),
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, short_answers("bamboogle"))
