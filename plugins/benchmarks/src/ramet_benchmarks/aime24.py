"""`aime24`: AIME I and II of 2024. The answer is a whole number, so a value that is equal is right: `073` is 73."""

from __future__ import annotations

from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import reward_of
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm

ABOUT = Published(
    name="aime24",
    description="the 30 problems of the American Invitational Mathematics Examination 2024; answers from 0 to 999",
    source="https://artofproblemsolving.com/wiki/index.php/AIME_Problems_and_Solutions (hub: HuggingFaceH4/aime_2024)",
    licence="none stated; the problems are of the Mathematical Association of America",
    n_tasks=30,
    contamination="in print since February 2024, with solutions on the web; all 30 are in valid.parquet of ARPO",
    hub=HubData(name="HuggingFaceH4/aime_2024", splits={"test": "train"}),
    form=RowForm(question=("question", "problem"), id=("id",)),
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, {"accuracy": reward_of("math", ABOUT.name)})
