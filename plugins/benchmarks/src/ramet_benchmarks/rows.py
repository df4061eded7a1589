"""Rows of a published set become tasks: from files in the published forms, from the hub, or from the samples here.

The forms differ in names of columns and in what a gold answer is: a text, a number, or a list of texts of which each is
right. Everything that a row lacks is a `ConfigError` that names file and row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramet import ConfigError, Task, json_rows, user_prompt

Values = Mapping[str, Any]
Row = tuple[str, int, Values]  # where it is, its number from 0, its columns
SAMPLES = Path(__file__).with_name("samples")
SHOWN = 20  # bad rows in one report


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """Names of columns, in the published files and on the hub; of several the first that a row has."""

    question: tuple[str, ...] = ("question",)
    answer: tuple[str, ...] = ("answer",)
    id: tuple[str, ...] = ()  # without any of them, the number of the row
    metadata: tuple[str, ...] | None = ()  # columns that stay with the task; None: all others
    wanted: Callable[[Values], bool] = lambda row: True  # False: the row is left out
    read: Callable[[Values], Values] = lambda row: row  # before all this; raises `ValueError`


@dataclass(frozen=True, slots=True, kw_only=True)
class HubData:
    """The place of the set on the Hugging Face hub."""

    name: str
    splits: Mapping[str, str] = field(default_factory=lambda: {"test": "test"})  # the benchmark's -> the hub's
    subsets: tuple[str | None, ...] = (None,)  # one after the other
    gated: bool = False

    @property
    def page(self) -> str:
        return f"https://huggingface.co/datasets/{self.name}"


def tasks_of(
    rows: Iterable[Row], form: RowForm, name: str, prefix: str, *, check: Callable[[Task], str | None] | None = None
) -> Iterator[Task]:
    """Tasks with the data source `name` and ids `PREFIX/…`. `check`: why a task cannot be scored.

    Raises `ConfigError` with all bad rows after the good ones, of which none comes any more once one is bad: rows that
    make no task, that cannot be scored, and ids that come twice.
    """
    seen: dict[str, str] = {}
    problems: list[str] = []
    for where, number, values in rows:
        try:
            task = _task(values, number, form, name, prefix)
            if task is None:
                continue
            problem = None if check is None else check(task)
            if task.id in seen:
                problem = f"the id {task.id!r} is also in {seen[task.id]}; ids must be unique"
            if problem is not None:
                raise ValueError(problem)
        except ValueError as error:
            problems.append(f"{where}: {error}")
            if len(problems) == SHOWN:
                problems.append("what follows was not read")
                break
            continue
        seen[task.id] = where
        if not problems:
            yield task
    if problems:
        raise ConfigError("\n".join(problems))


def _task(values: Values, number: int, form: RowForm, name: str, prefix: str) -> Task | None:
    """Read a row as a task; None for one that is left out. Raises `ValueError`."""
    row = form.read(values)
    if not form.wanted(row):
        return None
    task_id = _first(row, form.id)
    return Task(
        id=f"{prefix}/{number if task_id is None else task_id}",
        prompt=user_prompt(_question(row, form.question)),
        answer=_golds(row, form.answer),
        data_source=name,
        metadata=_metadata(row, form),
    )


def file_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file. Raises `ConfigError`, for a file that does not exist `from` a `FileNotFoundError`."""
    return ((f"{path}, row {number}", number - 1, values) for number, values in json_rows(path))


def hub_rows(hub: HubData, split: str, option: str) -> Iterator[Row]:
    """Yield the rows of a set. `option`: where another path may be set.

    Raises `ConfigError` that says how to get access, or what to install.
    """
    instead = f"or set {option} to a .jsonl file in the published form; split=sample needs neither"
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError(
            f"{option}: {hub.name!r} is not a local file or folder; to load it from the hub install "
            f"`ramet-benchmarks[hub]`, {instead}"
        ) from error
    number = 0
    for subset in hub.subsets:
        try:
            rows = load_dataset(hub.name, subset, split=hub.splits[split])
        except Exception as error:  # whatever the hub, the network or the cache raises: the data is not there
            access = (
                f". It is gated: accept its terms at {hub.page} and log in with `hf auth login` (or set HF_TOKEN), "
                if hub.gated
                else "; "
            )
            reason = " ".join(str(error).split()).rstrip(".")
            raise ConfigError(f"{option}: cannot load {hub.name!r} from the hub: {reason}{access}{instead}") from error
        for row in rows:
            yield f"{hub.name}, split {split}, row {number + 1}", number, row
            number += 1


def _metadata(row: Values, form: RowForm) -> dict[str, Any]:
    used = {*form.question, *form.answer, *form.id}
    kept = [key for key in row if key not in used] if form.metadata is None else form.metadata
    return {key: row[key] for key in kept if row.get(key) is not None}


def _first(row: Values, names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _present(row: Values, names: tuple[str, ...]) -> Any:
    value = _first(row, names)
    if value is None:
        wanted = " or ".join(map(repr, names))
        raise ValueError(f"no key {wanted} (or null); found {', '.join(row) or 'nothing'}")
    return value


def _question(row: Values, names: tuple[str, ...]) -> str:
    question = _present(row, names)
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"the question must be a text that is not empty, got {question!r:.80}")
    return question


def _golds(row: Values, names: tuple[str, ...]) -> tuple[str, ...]:
    answer = _present(row, names)
    golds = answer if isinstance(answer, list | tuple) else [answer]
    wrong = [gold for gold in golds if isinstance(gold, bool) or not isinstance(gold, str | int | float)]
    texts = tuple(dict.fromkeys(str(gold) for gold in golds))
    if wrong or not texts or not all(text.strip() for text in texts):
        raise ValueError(f"the answer must be a text, a number, or a list of them, none empty; got {answer!r:.80}")
    return texts
