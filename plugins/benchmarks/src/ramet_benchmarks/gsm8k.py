"""`gsm8k`: grade-school word problems (Cobbe et al. 2021, arXiv 2110.14168), scored by equality of numbers.

The gold answer is the number after `####`, without thousands separators.
"""

from __future__ import annotations

from ramet import Rollout, per_rollout
from ramet_benchmarks.answers import number
from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm, Values


def with_number(row: Values) -> Values:
    """Take the number out of the solution. Raises `ValueError` for one that does not end in #### and a number."""
    if row.get("answer") is None:
        return row
    solution = str(row["answer"])
    _, separator, gold = solution.rpartition("####")
    gold = gold.strip().replace(",", "")
    if not separator or number(gold) is None:
        raise ValueError(f"`answer` must end in #### and a number, found {solution[-60:]!r}")
    return {**row, "answer": gold}


def accuracy(rollout: Rollout) -> float:
    value = None if rollout.answer is None else number(rollout.answer)
    return float(value is not None and value == number(rollout.task.answer[0]))


ABOUT = Published(
    name="gsm8k",
    description="grade-school mathematics word problems; the answer is one number",
    source="https://github.com/openai/grade-school-math (hub: openai/gsm8k), Cobbe et al. 2021",
    licence="MIT",
    n_tasks=1319,
    contamination="on the web since 2021 and in most training corpora; the split train is training data of many models",
    hub=HubData(name="openai/gsm8k", splits={"train": "train", "test": "test"}, subsets=("main",)),
    form=RowForm(read=with_number),
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, {"accuracy": per_rollout(accuracy)})
