"""The two layouts of a data file, distinguished row by row, and the one known defect of published files.

Flat: `prompt`, `answer`. Published (ARPO, and verl's files in general): the answer is `reward_model.ground_truth`. In
both the prompt is a text or a list of chat messages. A row that has a column `answer` is flat, whatever other columns
it has; `data.columns.answer` decides by name instead.

The system prompt of ARPO's files contains `\\boxed` twice, written as a backspace (U+0008) and `oxed`: an escape was
read when the files were made. No text means that, so it is repaired everywhere in the row, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FLAT_ANSWER, PUBLISHED_ANSWER = "answer", "reward_model.ground_truth"
CORRUPT, INTENDED = "\boxed", "\\boxed"
ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Names of the columns of data files, as `data.columns` has them."""

    id: str | None = None  # None: file stem and row number
    prompt: str = "prompt"
    answer: str | None = None  # None: of each row's layout
    data_source: str | None = "data_source"
    tools: str | None = "tools"
    difficulty: str | None = None  # a number in every row of the training data, larger is harder

    @classmethod
    def of(cls, named: Mapping[str, str | None]) -> Columns:
        return cls(**named)  # type: ignore[arg-type]


def value_at(values: Any, column: str) -> Any:
    """The value of a column, by its name or by a dotted path into nested ones; `ABSENT` without one."""
    if not isinstance(values, dict):
        return ABSENT
    if column in values:
        return values[column]
    head, dot, rest = column.partition(".")
    return value_at(values[head], rest) if dot and head in values else ABSENT


def answer_column(values: dict[str, Any], columns: Columns) -> str:
    """The column of this row's gold answer, whether or not there is a value in it."""
    if columns.answer is not None:
        return columns.answer
    published = value_at(values, FLAT_ANSWER) is ABSENT and value_at(values, PUBLISHED_ANSWER) is not ABSENT
    return PUBLISHED_ANSWER if published else FLAT_ANSWER


def repair(value: Any) -> Any:
    """The same value with every corrupted `\\boxed` repaired; the object itself if it has none."""
    if isinstance(value, str):
        return value.replace(CORRUPT, INTENDED) if CORRUPT in value else value
    if isinstance(value, list):
        items = [repair(item) for item in value]
        return (
            items if any(repaired is not original for repaired, original in zip(items, value, strict=True)) else value
        )
    if isinstance(value, dict):
        fields = {key: repair(item) for key, item in value.items()}
        return fields if any(fields[key] is not item for key, item in value.items()) else value
    return value
