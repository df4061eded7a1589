"""`math500`: 500 problems of MATH's test split, drawn by Lightman et al. (arXiv 2305.20050). An answer is right if it
is mathematically equal to the gold answer.
"""

from __future__ import annotations

from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import reward_of
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm

ABOUT = Published(
    name="math500",
    description="500 competition problems of MATH, drawn from its test split; answers are formulas",
    source="https://github.com/openai/prm800k (hub: HuggingFaceH4/MATH-500), Lightman et al. 2023",
    licence="MIT",
    n_tasks=500,
    contamination="part of MATH, on the web since 2021 and in most training corpora; 30 are in valid.parquet of ARPO",
    hub=HubData(name="HuggingFaceH4/MATH-500"),
    form=RowForm(question=("question", "problem"), id=("unique_id",), metadata=("subject", "level")),
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, {"accuracy": reward_of("math", ABOUT.name)})
