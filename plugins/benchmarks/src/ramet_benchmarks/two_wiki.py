"""`two_wiki`: 2WikiMultihopQA, questions over two pages of Wikipedia (Ho et al. 2020, arXiv 2011.01060), with the
authors' exact match and F1. The name begins with a letter, as names of the configuration do.
"""

from __future__ import annotations

from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import short_answers
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm

ABOUT = Published(
    name="two_wiki",
    description="questions that take two pages of Wikipedia (2WikiMultihopQA); short answers with aliases",
    source="https://github.com/Alab-NII/2wikimultihop (hub: framolfese/2WikiMultihopQA, 12,576 development tasks), "
    "Ho et al. 2020",
    licence="Apache-2.0",
    n_tasks=200,
    contamination="Wikipedia and Wikidata of 2020, which models know; made from templates, so the form is guessed",
    hub=HubData(name="framolfese/2WikiMultihopQA", splits={"test": "validation"}),
    form=RowForm(answer=("answer", "golden_answers"), id=("_id", "id"), metadata=("type",)),
    folder="2wiki",
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, short_answers("two_wiki"))
