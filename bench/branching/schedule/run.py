"""Ramet's scheduler and the released round schedule on the same work: what do barriers and serial filling cost?

    python bench/branching/schedule/run.py [--repeats 7]

The engine is fake: a generation takes 20 ms, however many run. `forks`: 8 roots a task, each forked once after its
first tool result, as both policies do with these options; every rollout makes 6 calls, whose latencies are drawn from a
Pareto distribution (the same call has the same latency in both). `no forks`: 16 roots. `no calls`: 8 roots that call
nothing, so that half of the budget is left. Both clocks are those of `bench/rollout_loop`. The trees and texts of both
sides are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness import measured, print_table, shown, spread, write_results
from rollout_loop.canned import SEARCH_SCHEMA, CannedEngine
from rollout_loop.quiet import QuietLoop
from rollout_loop.work import QUESTION, SYSTEM, Fixture

from ramet import Message, Rollout, Task, ToolCall, ToolResult
from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.engines.protocol import Completion, FinishReason, FirstReport, Request
from ramet.rollout.config import TagsConfig
from ramet.rollout.keys import RolloutKey, stable_seed
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet_arpo.branching import Arpo
from ramet_arpo.config import ArpoConfig
from ramet_release.arpo import ArpoRelease
from ramet_release.config import ArpoReleaseConfig

CLOCKS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "wall": asyncio.new_event_loop,
    "undisturbed": QuietLoop,
}
GENERATION_S = 0.02
GOALS = {"share_of_lockstep": 0.5, "rounds_without_calls": 1}
HEAD = ("case", "schedule", "wall s", "undisturbed s", "share of lockstep, wall", "undisturbed", "rounds without calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`tail`: the exponent of the Pareto distribution; the smaller, the heavier. Its least value is `latency_s`."""

    name: str
    roots: int
    calls: int
    tasks: int = 16
    budget: int = 16
    latency_s: float = 0.02
    tail: float = 1.2
    most_s: float = 2.0

    def latency(self, seed: int, rollout: str, turn: int) -> float:
        drawn = Random(stable_seed("latency", seed, rollout, turn)).paretovariate(self.tail)
        return min(self.most_s, self.latency_s * drawn)


CASES = (
    Case(name="forks, 6 calls", roots=8, calls=6),
    Case(name="no forks, 6 calls", roots=16, calls=6),
    Case(name="no calls, 8 roots", roots=8, calls=0),
    Case(name="no calls, 16 roots", roots=16, calls=0),
)


class FakeEngine(CannedEngine):
    """Answers with the canned turns of `Fixture`, each after a moment."""

    def __init__(self, fixture: Fixture, case: Case) -> None:
        super().__init__(fixture)
        self.case = case
        self._ended: Counter[str] = Counter()  # by task, the longest chain of generations that have ended

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        task = RolloutKey.parse(request.id.rpartition("/")[0]).task
        place = self._ended[task] + 1
        await asyncio.sleep(GENERATION_S)
        self._ended[task] = max(self._ended[task], place)
        turn = int(request.id.rpartition("/")[2])
        sampled = self.fixture.turn(turn, self.case.calls)
        rising = array("f", [turn + 1.0] * len(sampled.ids))  # so that the threshold is passed after every result
        if on_first is not None:
            on_first(FirstReport(request=request.id, entropies=tuple(rising[: request.first_tokens])))
        stop = "</search>" if turn < self.case.calls else "</answer>"
        ended = stop not in request.sampling.stop  # lockstep: an answer ends with the end of sequence
        ids = sampled.ids + array("i", [self.fixture.encoder.eos_id] * ended)
        more = array("f", [0.0] * ended)
        return Completion(
            token_ids=ids,
            logprobs=sampled.logprobs + more,
            entropies=rising + more,
            finish=FinishReason.END if ended else FinishReason.STOP,
            stop=None if ended else stop,
            policy_versions=array("i", [0]) * len(ids),
            prompt_tokens=len(request.token_ids),
            cached_tokens=0,
            top_logprobs=((-0.1, -2.3),) * min(len(ids), request.first_tokens) if request.top_logprobs else (),
        )

    @property
    def rounds(self) -> int:
        """The longest chain of generations of one task, each begun after the one before it had ended."""
        return max(self._ended.values())


class SlowSearch:
    """Takes as long as was drawn for this call of this rollout."""

    schema = SEARCH_SCHEMA

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.seed, self.n_runs = case, seed, 0

    async def __call__(self, call: ToolCall) -> ToolResult:
        self.n_runs += 1
        await asyncio.sleep(self.case.latency(self.seed, call.rollout, call.turn))
        return ToolResult(text=f"result {call.turn}")


def worker(schedule: str, fixture: Fixture, case: Case, engine: FakeEngine, tool: SlowSearch) -> RolloutWorker:
    rollouts = case.tasks * case.budget
    given: dict[str, Any] = {
        "engine": engine,
        "encoder": fixture.encoder,
        "step": Tags(TagsConfig()),
        "tools": {"search": (tool, ToolConfig(concurrency=rollouts))},
        "config": RolloutConfig(group_size=case.budget, max_concurrent=rollouts),
        "system_prompt": SystemPrompt.AUTO,
        "seed": 1,
        "deterministic": False,
    }
    if schedule == "lockstep":
        rule = ArpoReleaseConfig(initial_rollouts=case.roots, branch_probability=1.0)
        return RolloutWorker(branch_policy=ArpoRelease(rule), **given)
    return RolloutWorker(
        branch_policy=Arpo(ArpoConfig(initial_rollouts=case.roots, tau=0.6, max_forks_per_root=1)), **given
    )


def play(schedule: str, clock: str, fixture: Fixture, case: Case, seed: int) -> tuple[dict[str, Any], list[Any]]:
    """One timed run, in an event loop of its own."""
    engine, tool = FakeEngine(fixture, case), SlowSearch(case, seed)
    made = worker(schedule, fixture, case, engine, tool)
    tasks = [
        Task(
            id=str(i),
            prompt=(Message(role="system", content=SYSTEM), Message(role="user", content=QUESTION.format(i))),
        )
        for i in range(case.tasks)
    ]

    async def timed() -> tuple[float, list[Rollout]]:
        started = asyncio.get_running_loop().time()
        groups = await made.run(tasks, step=1)
        return asyncio.get_running_loop().time() - started, [one for group in groups for one in group.rollouts]

    with measured() as process, asyncio.Runner(loop_factory=CLOCKS[clock]) as runner:
        seconds, rollouts = runner.run(timed())
    numbers = {"schedule": schedule, "clock": clock, "seed": seed, "seconds": seconds, "cpu_s": process.cpu_s}
    work = [(one.task.id, one.id, one.parent, one.fork_turn, one.response) for one in rollouts]
    return {**numbers, "load": process.load, "tool_runs": tool.n_runs, "rounds": engine.rounds}, work


def run_case(case: Case, fixture: Fixture, repeats: int) -> list[dict[str, Any]]:
    """All repeats, the schedules in turn; the first is not counted. Raises if they did not do the same work."""
    runs = []
    for repeat in range(repeats + 1):
        for clock in CLOCKS:
            lockstep, theirs = play("lockstep", clock, fixture, case, repeat)
            ramet, ours = play("ramet", clock, fixture, case, repeat)
            if theirs != ours or lockstep["tool_runs"] != ramet["tool_runs"]:
                raise AssertionError(f"{case.name}: the schedules did other work")
            runs += [{"case": case.name, "round": repeat, **one} for one in (lockstep, ramet) if repeat]
    return runs


def compare(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """By schedule, one value a round; ratios are taken within a round."""

    def column(schedule: str, clock: str) -> list[float]:
        return [run["seconds"] for run in runs if run["schedule"] == schedule and run["clock"] == clock]

    out = {}
    for schedule in ("lockstep", "ramet"):
        shares = {
            f"{clock}_share": [
                own / other for own, other in zip(column(schedule, clock), column("lockstep", clock), strict=True)
            ]
            for clock in CLOCKS
        }
        rounds = [float(run["rounds"]) for run in runs if run["schedule"] == schedule]
        out[schedule] = {f"{clock}_s": column(schedule, clock) for clock in CLOCKS} | shares | {"rounds": rounds}
    return out


def row_of(case: Case, schedule: str, values: Mapping[str, list[float]]) -> list[str]:
    return [
        case.name,
        schedule,
        shown(values["wall_s"]),
        shown(values["undisturbed_s"]),
        shown(values["wall_share"], 2),
        shown(values["undisturbed_share"], 2),
        "" if case.calls else f"{median(values['rounds']):.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    logging.getLogger("ramet").setLevel(logging.ERROR)  # a loop that other programs hold up is expected here
    fixture = Fixture()
    runs: list[dict[str, Any]] = []
    rows, summary = [], {}
    for case in CASES:
        own = run_case(case, fixture, repeats)
        runs += own
        compared = compare(own)
        summary[case.name] = {name: {k: spread(v) for k, v in one.items()} for name, one in compared.items()}
        rows += [row_of(case, name, values) for name, values in compared.items()]
    print_table(HEAD, rows)
    settings = {"goals": GOALS, "generation_s": GENERATION_S, "cases": [asdict(case) for case in CASES]}
    print(f"\nraw numbers: {write_results('branching_schedule', settings, runs, summary).name}")


if __name__ == "__main__":
    main()
