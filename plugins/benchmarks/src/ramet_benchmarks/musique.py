"""`musique`: questions composed of two to four simple ones (Trivedi et al. 2022, arXiv 2108.00573), with the
authors' F1 and exact match. Only those that can be answered.
"""

from __future__ import annotations

from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import short_answers
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm, Values


def with_aliases(row: Values) -> Values:
    """Add the other names of an answer, which the authors' files keep apart."""
    answer, aliases = row.get("answer"), row.get("answer_aliases")
    if answer is None or not aliases:
        return row
    return {**row, "answer": [*(answer if isinstance(answer, list) else [answer]), *aliases]}


ABOUT = Published(
    name="musique",
    description="questions composed of two to four single-hop ones; short answers with aliases",
    source="https://github.com/StonyBrookNLP/musique (hub: dgslibisey/MuSiQue, 2,417 development tasks), "
    "Trivedi et al. 2022",
    licence="CC BY 4.0",
    n_tasks=200,
    contamination="composed of questions that are in training sets of others; 1 of the 200 is in valid.parquet of ARPO",
    hub=HubData(name="dgslibisey/MuSiQue", splits={"test": "validation"}),
    form=RowForm(
        answer=("answer", "golden_answers"),
        id=("id",),
        wanted=lambda row: row.get("answerable") is not False,
        read=with_aliases,
    ),
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, short_answers("musique", main="f1"))
