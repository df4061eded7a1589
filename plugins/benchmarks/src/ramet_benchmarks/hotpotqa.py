"""`hotpotqa`: questions over two pages of Wikipedia (Yang et al. 2018, arXiv 1809.09600), with the authors' exact
match and F1.
"""

from __future__ import annotations

from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import short_answers
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm

ABOUT = Published(
    name="hotpotqa",
    description="questions that take two pages of Wikipedia; short answers",
    source="https://hotpotqa.github.io (hub: hotpotqa/hotpot_qa, 7,405 development tasks), Yang et al. 2018",
    licence="CC BY-SA 4.0",
    n_tasks=200,
    contamination="Wikipedia of 2017, which models know; 5 of the 200 are in train_10k.parquet of ARPO",
    hub=HubData(name="hotpotqa/hotpot_qa", subsets=("distractor",), splits={"test": "validation"}),
    form=RowForm(answer=("answer", "golden_answers"), id=("id",), metadata=("type", "level")),
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, short_answers("hotpotqa"))
