"""`ramet judge RESULT`: rewards, an LLM judge mostly, over the stored rollouts of an evaluation, as a pass of its own.

No rollout is run. Each reward becomes a metric in a separate file next to the results (`results.judge-NAME.json`);
every verdict is on disk as soon as it is there, with what a model was asked and answered for it, and the same command
asks only for what is missing. Another judge is another entry of `rewards`, under a name of its own. What was not
judged is counted, never 0.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ramet.components.build import Components, start_rewards
from ramet.components.services import RunServices
from ramet.config.resolved import Resolved
from ramet.config.stored import stored_entry
from ramet.errors import ConfigError, raise_all
from ramet.evaluate.agreement import JUDGES, Verdicts, read_judge
from ramet.evaluate.files import check_tasks, load_results, read_groups
from ramet.evaluate.header import differing, plain
from ramet.evaluate.lines import HEADER, ResumableLines
from ramet.evaluate.results import BenchmarkResult, measured
from ramet.evaluate.tasks import TaskResult, without_secrets
from ramet.event_loop import first_error, run_async
from ramet.helpers.openai.exchanges import collected
from ramet.io.atomic import write_file
from ramet.rollout.scoring import Scorer, WeightedReward
from ramet.runs.manifest import input_files
from ramet.runs.own_files import SERVICES
from ramet.types import Group, Task

logger = logging.getLogger(__name__)
SCHEMA = 1
UNUSED = ("weight", "clip", "combine", "max_unjudged", "resample")  # of several rewards in a training step
SHOWN = 20  # problems in one report
AT_ONCE = 64  # tasks that are judged at the same time; a judge's own `concurrency` bounds its requests


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedResult:
    """One reward's pass. `results` has one entry per benchmark with tasks that the reward judges."""

    name: str
    file: Path
    results: tuple[BenchmarkResult, ...]
    n_failed: int  # rollouts that were to be judged and have no verdict; masked ones are not among them

    @property
    def n_judged(self) -> int:
        return sum(result.n_judged for result in self.results)

    @property
    def n_rollouts(self) -> int:
        return sum(result.n_rollouts for result in self.results)


def run(result: Path, resolved: Resolved) -> list[JudgedResult]:
    """Judge with every configured reward. Raises `ConfigError` if results or rollouts cannot be read, if a file of this
    name holds what another judge said, and for options of rewards that a pass does not use.
    """
    file, body = load_results(result)
    check_tasks(file, body)
    if not resolved.config.rewards:
        raise ConfigError("rewards: none chosen; name a judge, as in rewards=[llm_judge]")
    raise_all(
        f"rewards.{name}.{key}: has no effect on a judge, whose scores are kept as they are; remove it"
        for name in resolved.config.rewards
        for key in UNUSED
        if f"rewards.{name}.{key}" in resolved.set_by_user
    )
    return run_async(_run(file, body, resolved))


async def _run(file: Path, body: Mapping[str, Any], resolved: Resolved) -> list[JudgedResult]:
    groups = list(read_groups(file, body))
    scorer = Components(resolved.config).scorer
    _check_tasks(file, scorer, [group.task for _, group in groups])
    passes = [_Pass(file, body, reward, _decisive(resolved, reward.name)) for reward in scorer.rewards]
    services = RunServices(folder=file.parent.absolute() / SERVICES, seed=resolved.config.run.seed)
    try:
        await start_rewards(scorer.rewards, services)
        return [await judge_pass.run(groups) for judge_pass in passes]
    finally:
        await scorer.aclose()


def _check_tasks(file: Path, scorer: Scorer, tasks: Sequence[Task]) -> None:
    """Raise `ConfigErrors` with every task that a reward can never judge, before the first is judged."""
    by_task = [(task.id, scorer.task_problem(task)) for task in tasks]
    bad = [f"{file}, task {id}: {problem}" for id, problem in by_task if problem is not None]
    more = [f"and {len(bad) - SHOWN} more tasks"] if len(bad) > SHOWN else []
    raise_all([*bad[:SHOWN], *more])


def _decisive(resolved: Resolved, name: str) -> dict[str, Any]:
    """Return what decides the verdicts: the judge's options without YAML's secrets, and hashes of files they name."""
    entry = stored_entry(resolved.text, "rewards", name)
    prefix = f"rewards.{name}.params."
    files = {
        key.removeprefix(prefix): digest for key, digest in input_files(resolved).items() if key.startswith(prefix)
    }
    options = {key: entry[key] for key in ("use", "params", "sources") if key in entry}
    return {"options": options, **({"files": files} if files else {})}


def _as_compared(options: Any) -> Any:
    """Leave out what changes no verdict: where the judge's server is, as long as the model is named, and patience."""
    params = options.get("params") if isinstance(options, Mapping) else None
    if not isinstance(params, Mapping):
        return options
    kept = {key: value for key, value in params.items() if key not in ("cache", "deadline_s")}
    server = kept.get("server")
    if isinstance(server, Mapping):
        names = ("urls", "model") if server.get("model") is None else ("model",)
        kept["server"] = {name: server.get(name) for name in names}
    return {**options, "params": kept}


def _in_words(key: str, name: str) -> str:
    """`options.params.prompt` of a header, as the configuration names it; the hash of a file is the file."""
    section, _, rest = key.partition(".")
    where = {"options": f"rewards.{name}.", "files": f"the file of rewards.{name}.params."}
    return where[section] + rest if rest and section in where else key


class _Pass:
    """One reward over all rollouts."""

    def __init__(
        self, file: Path, body: Mapping[str, Any], reward: WeightedReward, decisive: Mapping[str, Any]
    ) -> None:
        self._body = body
        self._reward = replace(reward, weight=1.0, clip=None, multiplies=False)
        self.out = file.with_name(f"{file.name.removesuffix('.json')}{JUDGES}{reward.name}.json")
        self._lines = ResumableLines(self.out.with_name(f"{self.out.name}.partial.jsonl"))
        self._header = plain({
            "schema": SCHEMA,
            "judge": reward.name,
            **decisive,
            "rollouts": body["rollouts"]["sha256"],
        })  # fmt: skip
        self._verdicts = self._earlier()

    async def run(self, groups: Sequence[tuple[str, Group]]) -> JudgedResult:
        applicable = [(benchmark, group) for benchmark, group in groups if self._reward.applies_to(group.task)]
        if not applicable:
            raise ConfigError(f"rewards.{self._reward.name}: it judges no task of these results (see sources)")
        places = asyncio.Semaphore(AT_ONCE)

        async def judged(benchmark: str, group: Group) -> None:
            async with places:
                await self._judge(benchmark, group)

        async with first_error(), asyncio.TaskGroup() as tasks:
            for benchmark, group in applicable:
                tasks.create_task(judged(benchmark, group))
        return self._finish(applicable)

    async def _judge(self, benchmark: str, group: Group) -> None:
        """Judge the task's rollouts that have no verdict yet."""
        earlier = self._verdicts.of(benchmark, group.task.id)
        unjudged = tuple(rollout for rollout in group.valid if earlier.get(rollout.id) is None)
        if not unjudged:
            return
        with collected() as asked:
            verdicts = await verdicts_of(self._reward, Group(task=group.task, rollouts=unjudged))
        if verdicts:
            new = Verdicts()
            new.add(benchmark, group.task.id, verdicts, [*map(without_secrets, asked)])
            (line,) = new.lines()
            self._lines.append(line)
            self._verdicts.add_line(line)

    def _earlier(self) -> Verdicts:
        """Read the verdicts of an earlier pass, finished or not; the partial file is there afterwards."""
        if self._lines.resume():
            verdicts = Verdicts()
            for _, body in self._lines.read():
                if HEADER in body:
                    self._check(body, self._lines.path)
                else:
                    verdicts.add_line(body)
            return verdicts
        verdicts = Verdicts()
        if self.out.exists():
            body, verdicts = read_judge(self.out)
            self._check(body, self.out)
        self._lines.begin(self._header, verdicts.lines())
        return verdicts

    def _check(self, header: Mapping[str, Any], file: Path) -> None:
        name, written = self._reward.name, {key: _as_compared(header.get(key)) for key in self._header}
        wanted = {key: _as_compared(value) for key, value in self._header.items()}
        other = sorted(_in_words(key, name) for key in differing(written, wanted))
        if other:
            raise ConfigError(
                f"{file}: contains verdicts of another judge or other rollouts (it differs in: {', '.join(other)}); "
                f"give this judge a name of its own, as in rewards.{name}_2.use={name}, or remove the file"
            )

    def _finish(self, applicable: Sequence[tuple[str, Group]]) -> JudgedResult:
        keys, measured_results = {(benchmark, group.task.id) for benchmark, group in applicable}, []
        k, pass_at, name = self._body["k"], tuple(self._body.get("pass_at", ())), self._reward.name
        for result in self._body["results"]:
            tasks = [
                self._with_verdicts(TaskResult.from_body(task))
                for task in result["tasks"]
                if (result["name"], task["task"]) in keys
            ]
            measured_results += [measured(result["name"], tasks, [name], k=k, pass_at=pass_at)] if tasks else []
        results = tuple(measured_results)
        summary = [
            {"name": result.name, "judged": result.judged, "metrics": [asdict(m) for m in result.metrics]}
            for result in results
        ]
        body = {**self._header, "results": plain(summary), "verdicts": list(self._verdicts.lines())}
        write_file(self.out, json.dumps(body, indent=1, allow_nan=False) + "\n")
        self._lines.path.unlink()
        failed = sum(
            self._verdicts.of(benchmark, group.task.id).get(rollout.id) is None
            for benchmark, group in applicable
            for rollout in group.valid
        )
        return JudgedResult(name=name, file=self.out, results=results, n_failed=failed)

    def _with_verdicts(self, task: TaskResult) -> TaskResult:
        verdicts = self._verdicts.of(task.benchmark, task.task)
        rollouts = (replace(rollout, scores={self._reward.name: verdicts.get(rollout.id)}) for rollout in task.rollouts)
        return replace(task, rollouts=tuple(rollouts))


async def verdicts_of(reward: WeightedReward, group: Group) -> dict[str, float]:
    """Return the reward's verdicts by rollout, of the rollouts that it judged."""
    scored = await Scorer([reward]).score(group, leave_out=False)
    return {judged.rollout.id: judged.parts[reward.name] for judged in scored.rollouts if judged.reward is not None}
