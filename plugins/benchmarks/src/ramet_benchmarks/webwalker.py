"""`webwalker`: WebWalkerQA, questions over several pages of one web site, in English and Chinese (Wu et al. 2025,
arXiv 2501.07572). The authors ask a judge, and answers are sentences: without `judge.ask`, `em` and `f1` are low
bounds.
"""

from __future__ import annotations

from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import short_answers
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData

ABOUT = Published(
    name="webwalker",
    description="questions over several pages of a web site (WebWalkerQA), English and Chinese; answers are sentences",
    source="https://github.com/Alibaba-NLP/WebAgent (hub: callanwu/WebWalkerQA, 680 tasks), Wu et al. 2025",
    licence="Apache-2.0",
    n_tasks=200,
    contamination="pages of 2024, which change: an answer may be out of date; no overlap with training data is known",
    hub=HubData(name="callanwu/WebWalkerQA", splits={"test": "main"}),
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, short_answers("webwalker", normalisation="unicode"))
