"""`gaia`: questions for assistants that use tools (Mialon et al. 2023, arXiv 2311.12983), only those without a file.

The authors' quasi-exact match (https://huggingface.co/spaces/gaia-benchmark/leaderboard): the comparison depends on the
gold answer. A number by its value, without $, % and thousands separators; a list (commas or semicolons) element by
element, in order; otherwise texts without case, spaces and punctuation. Neither units nor words are converted.
"""

from __future__ import annotations

import math
import re
import string

from ramet import Rollout, per_rollout
from ramet_benchmarks.answers import unboxed
from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm

_SEPARATOR = re.compile(r"[,;]")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
PROMPT = """{question}

Give the final answer as a number, as few words as possible, or a list of these with commas between them. Write \
numbers in digits, without thousands separators, and with a unit only if one is asked for; write words without \
articles and abbreviations."""


def accuracy(rollout: Rollout) -> float:
    if rollout.answer is None:
        return 0.0
    answer = unboxed(rollout.answer)
    return float(any(quasi_equal(gold, answer) for gold in rollout.task.answer))


def quasi_equal(gold: str, answer: str) -> bool:
    if _as_number(gold) is not None:
        return _equal_numbers(gold, answer)
    if not _SEPARATOR.search(gold):
        return _squeezed(gold).translate(_NO_PUNCTUATION) == _squeezed(answer).translate(_NO_PUNCTUATION)
    wanted, elements = _SEPARATOR.split(gold), _SEPARATOR.split(answer)
    return len(wanted) == len(elements) and all(map(_equal_elements, wanted, elements))


def _equal_elements(gold: str, answer: str) -> bool:
    """Compare elements of lists, in which punctuation counts."""
    return _equal_numbers(gold, answer) if _as_number(gold) is not None else _squeezed(gold) == _squeezed(answer)


def _equal_numbers(gold: str, answer: str) -> bool:
    return _as_number(re.sub(r"[$%,]", "", answer)) == _as_number(gold)


def _as_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _squeezed(text: str) -> str:
    return "".join(text.split()).lower()


ABOUT = Published(
    name="gaia",
    description="questions for assistants that search and compute, from the validation set, without files",
    source="https://huggingface.co/datasets/gaia-benchmark/GAIA, Mialon et al. 2023",
    licence="none stated; gated, and its authors ask not to publish it again",
    n_tasks=103,
    contamination="validation answers can be found on the web; the 103 published tasks are gaia_test.parquet of ARPO, "
    "which was used to choose checkpoints",
    hub=HubData(name="gaia-benchmark/GAIA", subsets=("2023_all",), splits={"test": "validation"}, gated=True),
    form=RowForm(
        question=("Question", "question"),
        answer=("answer", "Final answer"),
        id=("task_id", "id"),
        metadata=("Level",),
        wanted=lambda row: not row.get("file_name"),
    ),
    prompt=PROMPT,
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, {"accuracy": per_rollout(accuracy)})
