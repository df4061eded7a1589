"""`math`: the test split of MATH (Hendrycks et al. 2021, arXiv 2103.03874), scored as `math500`.

The authors' files have only solutions: the gold answer is in their last box.
"""

from __future__ import annotations

import re

from ramet_benchmarks.answers import last_box
from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import reward_of
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm, Values

SUBJECTS = (
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
    "precalculus",
)  # fmt: skip
_BARE_BOX = re.compile(r"\\(?:boxed|fbox) ([^\s$][^$]*)")  # a few solutions have no braces: $\boxed 2$


def with_answer(row: Values) -> Values:
    """Take the answer out of the solution's box. Raises `ValueError` for a solution without one."""
    if row.get("answer") is not None or row.get("solution") is None:
        return row
    solution = str(row["solution"])
    bare = _BARE_BOX.findall(solution)
    answer = last_box(solution) or (bare[-1].strip() if bare else None)
    if not answer:
        raise ValueError(f"the solution has no \\boxed{{…}} with an answer: {solution[-60:]!r}")
    return {**row, "answer": answer}


ABOUT = Published(
    name="math",
    description="5,000 competition problems in seven subjects; answers are formulas",
    source="https://github.com/hendrycks/math (hub: EleutherAI/hendrycks_math), Hendrycks et al. 2021",
    licence="MIT",
    n_tasks=5000,
    contamination="on the web since 2021 and in most training corpora; the split train is training data of many models",
    hub=HubData(name="EleutherAI/hendrycks_math", splits={"train": "train", "test": "test"}, subsets=SUBJECTS),
    form=RowForm(question=("problem", "question"), metadata=("level", "type"), read=with_answer),
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, {"accuracy": reward_of("math", ABOUT.name)})
