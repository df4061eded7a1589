"""`ramet benchmarks list|validate|overlap`: what can be measured, whether its data is sound, and what is known of it.

None of it needs a model. The splits are `test` where its data is in the folder of `--data`, else `sample` where there
is one; what a key says holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ramet.cli.terminal import Parser, say, text_table
from ramet.components.build import Components
from ramet.config.compose import compose
from ramet.config.resolved import Resolved
from ramet.config.sections import without_model
from ramet.data.files import find_files
from ramet.data.inspect import inspect_files
from ramet.data.layout import Columns
from ramet.data.overlap import overlaps
from ramet.errors import ConfigError, RametError, raise_all
from ramet.plugins import load_plugins
from ramet.plugins.instance_keys import renamed
from ramet.runs.hub_inputs import local_data
from ramet.testing.benchmark import check_benchmark
from ramet.types import Benchmark, BenchmarkInfo, Task

TEST, SAMPLE = "test", "sample"
SHOWN = 3  # overlaps of a benchmark that are printed


def run(arguments: Sequence[str]) -> int:
    options = _parser().read(arguments)
    if options is None:
        return 0
    if options.data is not None and not options.data.is_dir():
        raise ConfigError(f"--data={options.data}: no such folder (working directory: {Path.cwd()})")
    overrides = [text for text in options.words if "=" in text and not Path(text).exists()]
    words = [text for text in options.words if text not in overrides]
    if options.what == "overlap":
        return _overlap(words, Chosen(overrides, options.data), as_json=options.json)
    if options.what == "validate":
        return _validate(Chosen(overrides, options.data, words))
    _list(Chosen(overrides, options.data, words), details=bool(words), as_json=options.json)
    return 0


class Chosen:
    """Benchmarks with their options: the ones of `names`, or of the keys, or all that are installed."""

    def __init__(self, overrides: Sequence[str], data: Path | None, names: Sequence[str] = ()) -> None:
        chooses_benchmarks = any(text.lstrip("+").startswith(("benchmarks=", "experiment=")) for text in overrides)
        named = names or ([] if chooses_benchmarks else load_plugins().registries.benchmarks.names)
        named_override = [f"benchmarks=[{','.join(named)}]"] if named else []
        self._resolved: Resolved = compose(without_model([*named_override, *overrides]), job="eval")
        self._components = Components(self._resolved.config)
        self._data = data
        self._all_chosen = bool(names) or chooses_benchmarks
        self.names = list(self._resolved.config.benchmarks)
        for name in self.names if data is not None else ():
            self._set_path(name, str(data))

    def is_chosen(self, name: str) -> bool:
        """Whether the user named it, or one of its keys; others are looked at since they are installed."""
        return self._all_chosen or any(key.startswith(f"benchmarks.{name}.") for key in self._resolved.set_by_user)

    def in_words(self, name: str, problem: Exception) -> str:
        """Describe the problem in one line, with the keys of this instance."""
        use = self._resolved.config.benchmarks[name].use or name
        lines = renamed(str(problem), f"benchmarks.{use}", f"benchmarks.{name}").splitlines()
        return "; ".join(" ".join(line.split()) for line in lines if line.strip())

    def build(self, name: str) -> Benchmark:
        """Raises `RametError` for one that needs options."""
        return self._components.benchmark(name)

    def split(self, name: str) -> str:
        """Raises `ConfigError` for data in the folder that cannot be read."""
        configured, info = self._resolved.config.benchmarks[name].split, self.build(name).info
        if f"benchmarks.{name}.split" in self._resolved.set_by_user or SAMPLE not in info.splits:
            return configured
        return configured if self._data is not None and self._has(name, configured) else SAMPLE

    def tasks(self, name: str) -> list[Task]:
        return list(self.build(name).load(self.split(name), self._resolved.config.benchmarks[name].limit))

    def columns(self) -> Columns:
        return Columns.of(self._resolved.config.data.columns)

    def _has(self, name: str, split: str) -> bool:
        try:
            next(iter(self.build(name).load(split, 1)), None)
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        return True

    def _set_path(self, name: str, path: str) -> None:
        settings = self._resolved.config.benchmarks[name]
        config = load_plugins().get("benchmarks", settings.use or name).config
        if settings.params is None and config is not None:
            settings.params = config()
        if hasattr(settings.params, "path") and settings.params.path is None:
            settings.params.path = path


def _list(benchmarks: Chosen, *, details: bool, as_json: bool) -> None:
    infos: dict[str, BenchmarkInfo] = {}
    for name in benchmarks.names:
        try:
            infos[name] = benchmarks.build(name).info
        except RametError:
            if details:
                raise
    if as_json:
        say(json.dumps({name: asdict(info) for name, info in infos.items()}, indent=2))
    elif details:
        say("\n\n".join("\n".join(_details(name, info)) for name, info in infos.items()))
    else:
        rows = [_row(name, infos.get(name)) for name in benchmarks.names]
        say(text_table(("NAME", "TASKS", "SPLITS", "METRICS", "WHAT"), rows))


def _row(name: str, info: BenchmarkInfo | None) -> tuple[str, ...]:
    if info is None:
        return name, "-", "-", "-", "needs options (docs/evaluation.md)"
    tasks = "-" if info.n_tasks is None else f"{info.n_tasks:,}"
    return name, tasks, ", ".join(info.splits), ", ".join(info.metrics), info.description


def _details(name: str, info: BenchmarkInfo) -> Iterator[str]:
    yield f"{name}: {info.description}"
    for key, value in asdict(info).items():
        if key == "description" or value in ((), {}, None, "", False):
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{part} {number:g}" for part, number in value.items())
        yield f"  {key:14}  {', '.join(value) if isinstance(value, tuple) else value}"


def _validate(benchmarks: Chosen) -> int:
    rows, sound = [], True
    for name in benchmarks.names:
        split, tasks, verdict = "-", "-", "ok"
        try:
            benchmark, split = benchmarks.build(name), benchmarks.split(name)
            tasks = _of_published(check_benchmark(benchmark, splits=[split], n_scored=None)[split], benchmark, split)
        except AssertionError as error:
            verdict, sound = f"PROBLEM {benchmarks.in_words(name, error)}", False
        except RametError as error:
            absent = split == "-" and not benchmarks.is_chosen(name)  # of all that are installed, one may need options
            verdict = f"{'not checked' if absent else 'PROBLEM'} {benchmarks.in_words(name, error)}"
            sound = sound and absent
        rows.append((name, split, tasks, verdict))
    say(text_table(("NAME", "SPLIT", "TASKS", "GOLD ANSWERS 1, EMPTY ONES 0, IDS UNIQUE"), rows))
    return 0 if sound else 1


def _of_published(n_tasks: int, benchmark: Benchmark, split: str) -> str:
    """A file that was cut short is sound; only its number of tasks shows it."""
    published = benchmark.info.n_tasks
    return f"{n_tasks}" if split != TEST or published in (None, n_tasks) else f"{n_tasks} (published: {published})"


def _overlap(files: Sequence[str], benchmarks: Chosen, *, as_json: bool) -> int:
    paths, problems = find_files(local_data(files))
    raise_all(problems)
    if not paths:
        raise ConfigError("which training data? name files, as in `ramet benchmarks overlap train.parquet`")
    inspected = inspect_files(paths, benchmarks.columns())
    raise_all(f"{file.path}: {problem}" for file in inspected for problem in file.problems)
    training = [task for file in inspected for task in file.tasks]
    results: dict[str, dict[str, Any]] = {}
    for name in benchmarks.names:
        try:
            split = benchmarks.split(name)
            tasks = benchmarks.tasks(name)
        except RametError as error:
            results[name] = {"not_checked": str(error)}
            continue
        results[name] = {
            "split": split,
            "tasks": len(tasks),
            "overlaps": [asdict(overlap) for overlap in overlaps(tasks, training)],
        }
    say(json.dumps(results, indent=2) if as_json else "\n".join(_result_lines(len(training), results)))
    return 1 if any(result.get("overlaps") for result in results.values()) else 0


def _result_lines(n_training: int, results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield f"{n_training} training tasks"
    for name, result in results.items():
        if "not_checked" in result:
            yield f"{name}: not checked: {' '.join(result['not_checked'].split())}"
            continue
        same = sum(overlap["shared"] == 1.0 for overlap in result["overlaps"])
        similar = len(result["overlaps"]) - same
        split, n = result["split"], result["tasks"]
        yield f"{name}, split {split}: of {n} tasks {same} are in it, {similar} more are similar"
        for overlap in result["overlaps"][:SHOWN]:
            question = " ".join(overlap["question"].split())
            yield f"    {overlap['task']} = {overlap['training']} ({overlap['shared']:.0%}): {question:.90}"
        if len(result["overlaps"]) > SHOWN:
            yield f"    … {len(result['overlaps']) - SHOWN} more (--json lists them)"


def _parser() -> Parser:
    parser = Parser(
        prog="ramet benchmarks",
        add_help=False,
        usage="ramet benchmarks [list|validate|overlap] [NAME… | FILE…] [--data DIR] [--json] [key=value …]",
        description="Lists benchmarks (with names: all that is known of these), validates their data without a model "
        "(ids are unique, gold answers score 1 and empty ones 0), or says which of their questions are in FILEs of "
        "training data.",
        epilog="Without --data, and for benchmarks that have no file in DIR, samples that come with their packages are "
        "looked at; benchmarks.NAME.split and benchmarks.NAME.params.path choose others. validate ends with exit code "
        "1 if something is wrong, overlap if there is any.",
    )
    parser.add_argument("what", nargs="?", choices=["list", "validate", "overlap"], default="list")
    parser.add_argument("words", nargs="*", metavar="NAME or FILE")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="a folder with NAME/SPLIT.jsonl in the published forms"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts (list and overlap)")
    return parser
