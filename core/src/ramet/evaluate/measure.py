"""Measuring: benchmark tasks through the same rollout code that trains, scored while other tasks still run.

Rollouts that an earlier attempt ran and did not judge are judged first, as they were recorded: a judge that was down
costs no generation, and no rollout is repeated until a judge likes its answer better.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from ramet.cluster.interfaces import Rollouts
from ramet.components.services import RunServices
from ramet.errors import ConfigError, PluginError, RametError
from ramet.evaluate.partial import PartialResults
from ramet.evaluate.tasks import Judgement, TaskResult, group_record, task_result
from ramet.event_loop import first_error, is_cancelled
from ramet.helpers.openai.exchanges import collected
from ramet.io import repeats
from ramet.plugins import origin
from ramet.plugins.lifecycle import close_component, start_component
from ramet.plugins.output_checks import metrics_problem
from ramet.plugins.plugin_code import defined_at, named, raised_at
from ramet.rollout.faults import DEFECT, is_defect
from ramet.rollout.plan import RolloutPlan, RolloutRequest, check_groups
from ramet.rollout.record import GroupRecord
from ramet.types import Benchmark, Group, Rollout, Task

logger = logging.getLogger(__name__)
AT_ONCE = 64  # tasks whose rollouts are judged again at the same time
Report = Callable[[str, int, int], None]  # benchmark, tasks done, tasks in all


@asynccontextmanager
async def started(benchmarks: Mapping[str, Benchmark], services: RunServices) -> AsyncIterator[None]:
    """Call each benchmark's `start` before the first score and its `aclose` at the end, where it has them.

    Raises as `start_component` does. What `aclose` raises is logged.
    """
    try:
        for name, benchmark in benchmarks.items():
            who = f"benchmark {name!r} ({origin(benchmark)})"
            await start_component(benchmark, who, services.of(f"benchmarks.{name}"))
        yield
    finally:
        for name, benchmark in benchmarks.items():
            await close_component(benchmark, f"benchmark {name!r} ({origin(benchmark)})")


async def judge_again(benchmarks: Mapping[str, Benchmark], partial: PartialResults) -> None:
    """Score the rollouts that an earlier attempt ran and did not judge. Those that are not judged now stay so."""
    places, n = asyncio.Semaphore(AT_ONCE), 0

    async def again(name: str, group: Group) -> None:
        try:
            task = await score_group(name, benchmarks[name], group)
            partial.add(task.result, task.record)
        finally:
            places.release()

    async with first_error(), asyncio.TaskGroup() as work:
        for name in benchmarks:
            for group in partial.unjudged(name):
                await places.acquire()
                work.create_task(again(name, group))
                n += len(group.rollouts)
    if n:
        logger.info("rollouts of an earlier attempt that were judged again: %d", n)


async def measure(
    rollouts: Rollouts,
    benchmarks: Mapping[str, Benchmark],
    tasks: Mapping[str, Sequence[Task]],
    *,
    plans: Mapping[str, RolloutPlan],
    partial: PartialResults,
    report: Report | None = None,
) -> None:
    """Run and score what `partial` does not have yet: complete tasks, and rollouts that were masked.

    Each task is on disk as soon as it is scored. A rollout that is tried again has the seed that it had. A benchmark
    that breaks the contract ends it at once: no further rollout is run.
    """
    n_done = 0

    async def keep(task: MeasuredTask) -> None:
        nonlocal n_done
        partial.add(task.result, task.record)
        n_done += 1
        if report is not None:
            report(task.result.benchmark, n_done, len(tasks[task.result.benchmark]))

    for name, benchmark in benchmarks.items():
        tasks_by_numbers: dict[tuple[int, ...], list[Task]] = {}  # numbers of rollouts -> tasks that lack these
        for task in tasks[name]:
            if numbers := partial.to_play(name, task.id):
                tasks_by_numbers.setdefault(numbers, []).append(task)
        n_done = len(tasks[name]) - sum(map(len, tasks_by_numbers.values()))
        await measure_tasks(rollouts, name, benchmark, tasks_by_numbers, plan=plans[name], keep=keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTask:
    """The rollouts of one task, or the ones that were asked for, scored by the benchmark."""

    group: Group
    result: TaskResult
    record: GroupRecord


Keep = Callable[[MeasuredTask], Awaitable[None]]


async def measure_tasks(
    rollouts: Rollouts,
    name: str,
    benchmark: Benchmark,
    tasks_by_numbers: Mapping[tuple[int, ...], Sequence[Task]],
    *,
    plan: RolloutPlan,
    keep: Keep,
) -> None:
    """Run and score tasks of one benchmark, which come by the numbers of the rollouts that each lacks.

    `keep` is given each task as soon as it is scored, while others still run. What it raises, or a benchmark that
    breaks the contract, stops all rollouts at once.
    """

    async def score(group: Group) -> None:
        await keep(await score_group(name, benchmark, group))

    def finished(group: Group) -> None:
        work.create_task(score(group))

    async with first_error(), asyncio.TaskGroup() as work:
        for numbers, tasks in tasks_by_numbers.items():
            work.create_task(_play(rollouts, tasks, replace(plan, roots=numbers, kept=False), finished))


async def _play(
    rollouts: Rollouts, tasks: Sequence[Task], plan: RolloutPlan, finished: Callable[[Group], None]
) -> None:
    size, done = rollouts.group_size(plan), set[str]()

    def on_group(group: Group) -> None:
        check_groups([group], [group.task], size)  # before it is kept, where a resume would take it for finished
        done.add(group.task.id)
        finished(group)

    await rollouts.run(RolloutRequest(tasks=tasks, step=0, plan=plan), on_group=on_group)
    if missing := [task.id for task in tasks if task.id not in done]:
        raise RametError(
            f"asked for rollouts of {len(tasks)} tasks, got rollouts of {len(done)}; missing: {', '.join(missing[:3])}"
        )


async def score_group(name: str, benchmark: Benchmark, group: Group) -> MeasuredTask:
    """Raises as `judge` does."""
    judged = await asyncio.gather(*(judge(name, benchmark, rollout) for rollout in group.rollouts))
    return MeasuredTask(
        group=group,
        result=task_result(name, group, judged),
        record=group_record(group, [judgement.scores for judgement in judged], benchmark.info.metrics[0]),
    )


async def judge(name: str, benchmark: Benchmark, rollout: Rollout) -> Judgement:
    """Scores of one rollout; none where it is masked or the benchmark could not judge it.

    Raises `PluginError` if the benchmark returned anything but scores of its metrics.
    """
    if not rollout.valid:
        return Judgement()
    with collected() as asked:
        scores = await _scores(name, benchmark, rollout)
    if isinstance(scores, str):
        return Judgement(asked=tuple(asked), unjudged=scores)
    return Judgement(scores=scores, asked=tuple(asked))


async def _scores(name: str, benchmark: Benchmark, rollout: Rollout) -> Mapping[str, float | None] | str:
    """The scores, or why there are none; it begins with `DEFECT` for a mistake in the benchmark's code."""
    who = f"benchmark {name!r} ({origin(benchmark)})"
    try:
        scores = await benchmark.score(rollout)
    except PluginError:
        raise
    except ConfigError as error:
        raise named(error, who, f"benchmarks.{name}") from error
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # not judged is counted, no failure of the model
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise  # else its own: a task group would take the task for cancelled, and the results would lack it
        what, traceback = f"{error!r}{raised_at(error)}", logger.isEnabledFor(logging.DEBUG)
        message = "benchmark %s could not score task %s: %s"
        repeats.warn(logger, f"benchmark {name} could not score", message, name, rollout.task.id, what, trace=traceback)
        return f"{DEFECT}{who}: {what}" if is_defect(error) else what
    problem = metrics_problem(scores, benchmark.info.metrics, judged=benchmark.info.judged)
    if problem is not None:
        where = f"{who}, task {rollout.task.id!r}, rollout {rollout.id}"
        raise PluginError(f"{where}: {problem}{defined_at(benchmark, 'score')}")
    return scores
