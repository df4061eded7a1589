"""`ramet eval --replay RESULT`: score all rollouts of an evaluation once more, without a model or a network.

The numbers must be those that the file holds; where they are not, a benchmark, its package or the file has changed.
What judges were asked and answered is in the file, so their raw answers are read again. Where it is not (a judge that
was not asked through `OpenAIClient`, results of an earlier version), their scores are taken from the file. All others
are started and closed as in an evaluation, with a temporary folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ramet.components.build import start_rewards
from ramet.components.services import RunServices
from ramet.config.request import read
from ramet.config.stored import stored_entry, stored_seed, typed_options
from ramet.errors import ConfigError, ConfigErrors, RametError, raise_all
from ramet.evaluate.agreement import judge_files, read_judge
from ramet.evaluate.files import check_tasks, load_results, read_groups
from ramet.evaluate.header import plain
from ramet.evaluate.judge_pass import verdicts_of
from ramet.evaluate.measure import judge, started
from ramet.evaluate.results import BenchmarkResult, measured
from ramet.evaluate.tables import print_tables, results_cells
from ramet.evaluate.tasks import Judgement, TaskResult, task_result
from ramet.event_loop import run_async
from ramet.helpers.openai.exchanges import answered_from
from ramet.plugins import load_plugins
from ramet.plugins.registry import Entry
from ramet.plugins.sources import blocked_plugins
from ramet.rollout.scoring import Scorer, WeightedReward
from ramet.types import Benchmark, Group

SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """`differences` names, in words, what is not as in the file; empty: the same numbers."""

    body: Mapping[str, Any]  # a results file's content, computed again
    n_rollouts: int
    from_file: tuple[str, ...]  # benchmarks with a judge whose answers are not stored: their scores are the file's
    verdicts: Mapping[Path, int]  # files of `ramet judge` with stored answers -> verdicts in them
    differences: tuple[str, ...]


def run(path: Path, overrides: Sequence[str] = ()) -> None:
    """Replay and print. Raises `RametError` with the differences, if there are any."""
    file, _ = load_results(path)
    replayed = replay(file, overrides)
    print_tables([results_cells(replayed.body)])
    judged = (
        f" (scores of {', '.join(replayed.from_file)} are from the file: a judge gave them)"
        if replayed.from_file
        else ""
    )
    if replayed.differences:
        raise RametError(f"{file}: scored again, {'; '.join(replayed.differences)}{judged}")
    for judge_file, n in replayed.verdicts.items():
        print(f"{judge_file}: the stored answers read again, the same {n} verdicts")
    print(f"{file}: {replayed.n_rollouts} rollouts scored again, the same numbers{judged}")


def replay(file: Path, overrides: Sequence[str] = ()) -> Replayed:
    """Score again. `overrides` name the files of code that the result's own options name, which only then are run.

    Raises `ConfigError` if the file or its rollouts cannot be read, or a benchmark of it is not installed.
    """
    file, body = load_results(file)
    check_tasks(file, body)
    command_line = _CommandLine(file, overrides)
    try:
        return run_async(_replay(file, body, command_line))
    except ConfigError as error:
        if gone := _gone(body):
            raise ConfigErrors([str(error), f"{file}: made with {', and with '.join(gone)}"]) from error
        raise


def _gone(body: Mapping[str, Any]) -> list[str]:
    """List the packages of the evaluation that are not here, with a remedy for each.

    What is blocked or could not be loaded is here: the error itself says so.
    """
    here = {*(info.name for info in load_plugins().infos), *blocked_plugins()}
    gone = []
    for plugin in body["plugins"]:
        if plugin["name"] not in here:
            of, module = plugin.get("distribution") or plugin["name"], f"module {plugin['name']}"
            way = f"set RAMET_PLUGINS={plugin['name']}" if of == module else "install it again"
            gone.append(f"{'the ' * (of == module)}{of}, which is not here: {way}")
    return gone


class _CommandLine:
    """The command line's changes of the options that the file has."""

    def __init__(self, file: Path, overrides: Sequence[str]) -> None:
        self._file = file
        request = read(overrides, "tool")
        raise_all(request.problems)
        self._values = {key: choice.value() for key, choice in request.choices.items()}
        self._values |= {key: setting.value for key, setting in request.settings.items()}

    def options(self, entry: Entry[Any], recorded: Mapping[str, Any], key: str) -> list[Any]:
        """Return what the factory takes. Raises `ConfigError` for a program or code that only the file names."""
        if entry.config is None:
            return []
        where = f"{key}.params."
        values = {name.removeprefix(where): value for name, value in self._values.items() if name.startswith(where)}
        options = typed_options(entry.config, recorded.get("params"), f"{key}.params", values)
        code: Mapping[str, str] = getattr(options, "runs_code", dict)()
        raise_all(
            f"{self._file}: {where}{option} names {text!r}, whose code would run; results are passed on, so read it, "
            f"and name it yourself: ramet eval --replay {self._file} {where}{option}={text}"
            for option, text in code.items()
            if option not in values
        )
        raise_all(
            f"{where}{option}: a replay takes the result's options as they are; only a program or a file of code is "
            f"named again ({', '.join(code) or 'here there is none'})"
            for option in values
            if option not in code
        )
        return [options]

    def check_sections(self, keys: Collection[str]) -> None:
        """Raise `ConfigErrors` for settings of any section but the components `keys`."""
        raise_all(
            f"{name}: --replay scores a finished evaluation as it was configured; only a file of code of "
            f"{', '.join(keys)} is named again"
            for name in self._values
            if not name.startswith(tuple(f"{key}.params." for key in keys))
        )


async def _replay(file: Path, body: Mapping[str, Any], command_line: _CommandLine) -> Replayed:
    judges = [_Judge(path, body) for path in judge_files(file)]
    checked = [stored_judge for stored_judge in judges if stored_judge.can_be_replayed]
    command_line.check_sections(
        [*(f"benchmarks.{name}" for name in body["benchmarks"]), *(stored_judge.key for stored_judge in checked)]
    )
    benchmarks = {name: stored_benchmark(body, name, command_line) for name in body["benchmarks"]}
    rewards = [stored_judge.reward(command_line) for stored_judge in checked]
    stored = {
        (t["benchmark"], t["task"]): TaskResult.from_body(t) for result in body["results"] for t in result["tasks"]
    }
    tasks: dict[str, list[TaskResult]] = {name: [] for name in benchmarks}
    asked = {t.benchmark for t in stored.values() if any(rollout.asked for rollout in t.rollouts)}
    from_file = {name for name, benchmark in benchmarks.items() if benchmark.info.judged and name not in asked}
    with TemporaryDirectory(prefix="ramet-replay-") as folder, answered_from(()):
        services = RunServices(folder=Path(folder), seed=stored_seed(body["settings"]["config"]))
        async with started({k: benchmark for k, benchmark in benchmarks.items() if k not in from_file}, services):
            for name, group in read_groups(file, body):
                score = _as_stored if name in from_file else _scored
                tasks[name].append(await score(name, benchmarks[name], group, stored[name, group.task.id]))
        changed = [
            await stored_judge.difference(reward, read_groups(file, body), services)
            for stored_judge, reward in zip(checked, rewards, strict=True)
        ]
    k, pass_at = body["k"], tuple(body.get("pass_at", ()))
    results = [measured(name, tasks[name], benchmarks[name].info.metrics, k=k, pass_at=pass_at) for name in benchmarks]
    return Replayed(
        body={**body, "results": [result.body() for result in results]},
        n_rollouts=sum(result.n_rollouts for result in results),
        from_file=tuple(sorted(from_file)),
        verdicts={stored_judge.file: len(stored_judge.verdicts.flat()) for stored_judge in checked},
        differences=(*_differences(body, results), *(words for words in changed if words is not None)),
    )


async def _scored(name: str, benchmark: Benchmark, group: Group, stored: TaskResult) -> TaskResult:
    """Judges are answered from what the file holds of each rollout."""
    judged = []
    for rollout, stored_rollout in zip(group.rollouts, stored.rollouts, strict=True):
        with answered_from(stored_rollout.asked):
            judged.append(replace(await judge(name, benchmark, rollout), unjudged=stored_rollout.unjudged))
    return task_result(name, group, judged)


async def _as_stored(name: str, benchmark: Benchmark, group: Group, stored: TaskResult) -> TaskResult:
    """Return the result with the scores of the file, of a judge that Ramet's client did not ask."""
    return task_result(
        name,
        group,
        [
            Judgement(scores=stored_rollout.scores, unjudged=stored_rollout.unjudged)
            for stored_rollout in stored.rollouts
        ],
    )


class _Judge:
    """A file of `ramet judge`."""

    def __init__(self, file: Path, body: Mapping[str, Any]) -> None:
        self.file = file
        self._content, self.verdicts = read_judge(file)
        self.key = f"rewards.{self._content['judge']}"
        self._of_these_rollouts = self._content["rollouts"] == body["rollouts"]["sha256"]

    @property
    def can_be_replayed(self) -> bool:
        """Whether it is of the current rollouts and answers of a model are stored: other judges may ask a network."""
        return self._of_these_rollouts and self.verdicts.n_asked > 0

    async def difference(
        self, reward: WeightedReward, groups: Iterable[tuple[str, Group]], services: RunServices
    ) -> str | None:
        """Return the difference in words; None: the same verdicts."""
        await start_rewards([reward], services)
        try:
            changed = await self._changed(reward, groups)
        finally:
            await Scorer([reward]).aclose()
        return f"judge {self._content['judge']}: other verdicts of {_shown(changed)}" if changed else None

    async def _changed(self, reward: WeightedReward, groups: Iterable[tuple[str, Group]]) -> list[str]:
        changed = []
        for benchmark, group in groups:
            earlier = self.verdicts.of(benchmark, group.task.id)
            judged = tuple(rollout for rollout in group.rollouts if rollout.id in earlier)
            if not judged:
                continue
            with answered_from(self.verdicts.asked(benchmark, group.task.id)):
                verdicts = await verdicts_of(reward, Group(task=group.task, rollouts=judged))
            changed += [f"{group.task.id}/{id}" for id, verdict in earlier.items() if verdicts.get(id) != verdict]
        return changed

    def reward(self, command_line: _CommandLine) -> WeightedReward:
        name, recorded = self._content["judge"], self._content["options"]
        entry = load_plugins().get("rewards", recorded.get("use") or name)
        reward = entry.build(*command_line.options(entry, recorded, self.key), key=self.key)
        return WeightedReward(name=name, plugin=entry.plugin, reward=reward)


def stored_benchmark(body: Mapping[str, Any], name: str, command_line: _CommandLine) -> Benchmark:
    """The benchmark with the options that the evaluation had."""
    key = f"benchmarks.{name}"
    recorded = stored_entry(body["settings"]["config"], "benchmarks", name)
    entry = load_plugins().get("benchmarks", recorded.get("use") or name)
    built: Benchmark = entry.build(*command_line.options(entry, recorded, key), key=key)
    return built


def _differences(body: Mapping[str, Any], results: list[BenchmarkResult]) -> list[str]:
    """List by benchmark the metrics whose mean changed, and the rollouts whose scores did."""
    words = []
    before = {result["name"]: result for result in body["results"]}
    for result in results:
        old, again = before[result.name], result.body()
        metrics = [{**new, **then} for new, then in zip(again["metrics"], old["metrics"], strict=False)]
        tasks = [plain(asdict(TaskResult.from_body(task))) for task in old["tasks"]]
        old = {**again, **old, "metrics": metrics, "tasks": tasks}  # files of earlier versions lack some statistics
        if old == again:
            continue
        means = {metric["metric"]: metric["avg"]["mean"] for metric in old["metrics"]}
        changed = [
            f"{m.metric} is {m.avg.mean}, was {means.get(m.metric)}"
            for m in result.metrics
            if m.avg.mean != means.get(m.metric)
        ]
        rollouts = [
            f"{new.task}/{now.id}"
            for new, task in zip(result.tasks, old["tasks"], strict=True)
            for now, then in zip(new.rollouts, task["rollouts"], strict=True)
            if dict(now.scores) != then["scores"]
        ]
        of = f"other scores of {_shown(rollouts)}" if rollouts else "other statistics"
        words.append(f"benchmark {result.name}: {', '.join([*changed, of])}")
    return words


def _shown(rollouts: Sequence[str]) -> str:
    more = f" and {len(rollouts) - SHOWN} more" if len(rollouts) > SHOWN else ""
    return f"{', '.join(rollouts[:SHOWN])}{more}"
