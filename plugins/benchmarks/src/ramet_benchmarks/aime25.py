"""`aime25`: AIME I and II of 2025, scored as `aime24`. Gold answers are whole numbers in the published file."""

from __future__ import annotations

from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import reward_of
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm

ABOUT = Published(
    name="aime25",
    description="the 30 problems of the American Invitational Mathematics Examination 2025; answers from 0 to 999",
    source="https://artofproblemsolving.com/wiki/index.php/AIME_Problems_and_Solutions (hub: math-ai/aime25)",
    licence="none stated; the problems are of the Mathematical Association of America",
    n_tasks=30,
    contamination="in print since February 2025, with solutions on the web; models trained before are clean",
    hub=HubData(name="math-ai/aime25"),
    form=RowForm(question=("question", "problem"), id=("id",)),
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, {"accuracy": reward_of("math", ABOUT.name)})
