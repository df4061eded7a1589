"""`ramet eval import`: what ARPO's evaluation code has written, as results that `ramet compare` and `judge` read.

`infer.py` writes `NAME/NAME_output_TURN.json`, a JSON list with an object for each question. Answers are scored here,
by the benchmark's own rules, so that both sides of a comparison are measured alike. A sample that timed out or raised
there, or that no server answered, is masked: it says nothing of the model.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ramet.components.build import Components
from ramet.components.services import RunServices
from ramet.config.resolved import Resolved
from ramet.errors import ConfigError, raise_all
from ramet.evaluate.evaluation import load_benchmark
from ramet.evaluate.files import rollouts_path, tasks_path, write_results
from ramet.evaluate.header import IMPORTED, Header
from ramet.evaluate.measure import MeasuredTask, score_group, started
from ramet.evaluate.results import BenchmarkResult, Results, measured
from ramet.event_loop import run_async
from ramet.types import (
    Benchmark,
    CallStatus,
    Fault,
    Group,
    Origin,
    Rollout,
    Segment,
    SegmentKind,
    StopReason,
    Task,
    ToolRecord,
    user_prompt,
)

FILE = re.compile(r"(?P<name>.+)_output_(?P<turn>\d+)\.json")
NAMES = {"2wiki": "two_wiki", "SimpleQA": "simpleqa"}  # of data sets that have another name here
FAILED = re.compile(r"Timeout$|Error: ")  # in place of a prediction
UNANSWERED = re.compile(r"(?:\A|</result>)\s*(?:None\s*)+\Z")  # what is written for a turn that no server answered
CALL = re.compile(r"<(python|search)>(.*?)</\1>(?:\s*<result>(.*?)</result>)?", re.DOTALL)
PARAMETERS = {"python": "code", "search": "query"}
SHOWN = 5  # problems of a kind in one report


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The outputs of one data set: of each question its records, one a turn."""

    name: str  # of the benchmark
    files: tuple[Path, ...]
    records: tuple[tuple[Mapping[str, Any], ...], ...]

    @property
    def k(self) -> int:
        return len(self.files)


def read_outputs(places: Sequence[Path]) -> list[Outputs]:
    """Read files, or all that are in folders. Raises `ConfigErrors` for files that cannot be read or do not agree."""
    by_name: dict[str, dict[int, Path]] = {}
    problems: list[str] = []
    for name, turn, path in _files(places, problems):
        if (other := by_name.setdefault(NAMES.get(name, name), {}).setdefault(turn, path)) != path:
            problems.append(f"{path}: is turn {turn} of {name}, as {other} is; name one of them")
    outputs = []
    for name, turns in by_name.items():
        files = tuple(turns[turn] for turn in sorted(turns))
        lists = [_records(file, problems) for file in files]
        asked = [[record["input"] for record in records] for records in lists]
        for file, questions in zip(files, asked, strict=True):
            if questions != asked[0]:
                problems.append(f"{file}: has other questions, or another order, than {files[0]}")
        records = tuple(zip(*lists, strict=False))
        outputs.append(Outputs(name=name, files=files, records=records))
    raise_all(problems)
    return outputs


def _files(places: Sequence[Path], problems: list[str]) -> Iterator[tuple[str, int, Path]]:
    for place in places:
        found = sorted(place.rglob("*_output_*.json")) if place.is_dir() else [place] if place.is_file() else []
        named = [(match["name"], int(match["turn"]), path) for path in found if (match := FILE.fullmatch(path.name))]
        if not named:
            problems.append(f"{place}: no outputs there; allowed: NAME_output_TURN.json, or a folder with such files")
        yield from named


def _records(file: Path, problems: list[str]) -> list[Mapping[str, Any]]:
    try:
        records = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{file}: cannot be read: {error}")
        return []
    if not isinstance(records, list) or not records:
        problems.append(f"{file}: expected a JSON list, with an object for each question")
        return []
    lacking = [
        f"{file}, entry {number}: lacks {', '.join(missing)}"
        for number, record in enumerate(records, 1)
        if (missing := [key for key in ("input", "output", "prediction", "answer") if not _has(record, key)])
    ]
    problems += lacking[:SHOWN]
    return [] if lacking else records


def _has(record: Any, key: str) -> bool:
    return isinstance(record, dict) and key in record and (key == "answer" or isinstance(record[key], str))


def import_outputs(outputs: Sequence[Outputs], resolved: Resolved, out: Path, *, model: str, matched: bool) -> Results:
    """Score outputs and write the results. `matched`: ids and gold answers come from the benchmarks' own tasks.

    Raises `ConfigError` for questions that the benchmark does not have, and for files that are there already.
    """
    for path in (out, tasks_path(out), rollouts_path(out)):
        if path.exists():
            raise ConfigError(f"{path}: is there already; name another file with --out")
    components = Components(resolved.config)
    benchmarks = {of.name: components.benchmark(of.name) for of in outputs}
    problems: list[str] = []
    tasks = {of.name: _tasks(of, benchmarks[of.name], resolved, matched, problems) for of in outputs}
    raise_all(problems)
    groups = {of.name: _groups(of, tasks[of.name]) for of in outputs}
    scored = run_async(_scored(benchmarks, groups, resolved.config.run.seed))
    of_benchmarks = tuple(_result(of, benchmarks[of.name], scored[of.name]) for of in outputs)
    results = Results(header=_header(outputs, resolved, benchmarks, model), benchmarks=of_benchmarks)
    by_key = {(task.result.benchmark, task.result.task): task for tasks in scored.values() for task in tasks}
    in_order = (by_key[result.name, task.task] for result in of_benchmarks for task in result.tasks)
    write_results(out, results.body(), ((task.result, task.record) for task in in_order))
    return results


def _tasks(of: Outputs, benchmark: Benchmark, resolved: Resolved, matched: bool, problems: list[str]) -> list[Task]:
    if not matched:
        answers = [records[0]["answer"] for records in of.records]
        bad = [number for number, answer in enumerate(answers) if not _is_gold(answer)]
        problems += [
            f"{of.files[0]}, entry {number + 1}: `answer` must be a text, a number, or a list of them, none empty; "
            f"got {answers[number]!r:.80}"
            for number in bad[:SHOWN]
        ]
        return [
            Task(
                id=f"{of.name}/test/{number}",
                prompt=user_prompt(records[0]["input"]),
                answer=tuple(map(str, answer if isinstance(answer, list) else [answer])),
                data_source=of.name,
            )
            for number, (records, answer) in enumerate(zip(of.records, answers, strict=True))
        ]
    by_question: dict[str, list[Task]] = {}
    for task in load_benchmark(of.name, benchmark, resolved.config.benchmarks[of.name]):
        by_question.setdefault(task.prompt[-1].content.strip(), []).append(task)
    tasks, absent = [], []
    for question in (records[0]["input"].strip() for records in of.records):
        if same := by_question.get(question):
            tasks.append(same.pop(0))  # a benchmark may have a question several times
        else:
            absent.append(question)
    problems += [f"{of.name}: the benchmark has no question {question[:60]!r}" for question in absent[:SHOWN]]
    return tasks


def _is_gold(answer: Any) -> bool:
    """Whether an answer can be right: nothing equals an empty one."""
    golds = answer if isinstance(answer, list) else [answer]
    return bool(golds) and all(isinstance(gold, str | int | float) and str(gold).strip() for gold in golds)


def _groups(of: Outputs, tasks: Iterable[Task]) -> list[Group]:
    return [
        Group(task=task, rollouts=tuple(_rollout(task, str(turn), record) for turn, record in enumerate(records)))
        for task, records in zip(tasks, of.records, strict=True)
    ]


def _rollout(task: Task, id: str, record: Mapping[str, Any]) -> Rollout:
    """One record as a rollout without token ids: they are not in the outputs."""
    prediction, output = record["prediction"], record["output"]
    unanswered = "no server answered" if UNANSWERED.search(output) else None
    failed = prediction if FAILED.match(prediction) else unanswered
    prompt = Segment(
        origin=Origin.INSERTED, kind=SegmentKind.PROMPT, turn=0, text=record["input"], token_ids=array("i")
    )
    turn = Segment(origin=Origin.SAMPLED, kind=SegmentKind.TURN, turn=0, text=output, token_ids=array("i"))
    answer = None if failed is not None or not prediction.strip() else prediction
    return Rollout(
        id=id,
        task=task,
        segments=(prompt, turn),
        stop=StopReason.FAULT if failed is not None else StopReason.END if answer is None else StopReason.ANSWER,
        answer=answer,
        tool_calls=tuple(_calls(output)),
        fault=None if failed is None else Fault(where="imported", message=failed),
    )


def _calls(output: str) -> Iterator[ToolRecord]:
    """The calls in a text. Their times are not in the outputs, nor whether one failed."""
    for turn, match in enumerate(CALL.finditer(output)):
        name, text, result = match.groups()
        yield ToolRecord(
            turn=turn,
            name=name,
            arguments={PARAMETERS[name]: text.strip()},
            status=CallStatus.OK,
            text=(result or "").strip(),
            wait_s=0.0,
            run_s=0.0,
            attempts=1,
        )


async def _scored(
    benchmarks: Mapping[str, Benchmark], groups: Mapping[str, Sequence[Group]], seed: int
) -> dict[str, list[MeasuredTask]]:
    with TemporaryDirectory() as folder:
        async with started(benchmarks, RunServices(folder=Path(folder), seed=seed)):
            return {
                name: [await score_group(name, benchmarks[name], group) for group in of_benchmark]
                for name, of_benchmark in groups.items()
            }


def _result(of: Outputs, benchmark: Benchmark, tasks: Sequence[MeasuredTask]) -> BenchmarkResult:
    return measured(of.name, [task.result for task in tasks], benchmark.info.metrics, k=of.k, pass_at=())


def _header(outputs: Sequence[Outputs], resolved: Resolved, benchmarks: Mapping[str, Benchmark], model: str) -> Header:
    files = {str(file): sha256(file.read_bytes()).hexdigest() for of in outputs for file in of.files}
    return Header(
        model=model,
        k=max(of.k for of in outputs),
        rules={},
        settings={"config": resolved.text, IMPORTED: files},
        benchmarks={name: benchmark.info for name, benchmark in benchmarks.items()},
        versions={},
        plugins=[],
    )
