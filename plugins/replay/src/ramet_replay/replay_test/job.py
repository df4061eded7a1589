"""`ramet test RUN`: recorded rollouts as regression tests of an agent.

The rollouts of a run run again, with the prompt, the template, the parser, the tools and the weights of today; recorded
tool results are given. Of each, the first token that differs is reported, and what kind of change that is. After a
difference nothing more is sampled.

Sampling is compared in one of two ways. A deterministic run with the torch engine samples the same tokens from the same
seeds, so it samples again. Otherwise the recorded tokens are given, and their log-probabilities are compared, with the
bounds of `ramet check-logprobs`.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby, islice
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from ramet.check.agreement import DEFAULTS, Statistic
from ramet.cluster.local import LocalRollouts
from ramet.components.build import start_rewards
from ramet.components.engines import build_engine, max_sequence_tokens
from ramet.components.services import RunServices
from ramet.components.toolbox import open_tools
from ramet.config.schema import Config
from ramet.engines.protocol import Capability, Engine, EngineInfo
from ramet.errors import ConfigError, raise_all
from ramet.evaluate.measure import judge, started
from ramet.event_loop import run_async
from ramet.export.check import SampleSequence, logprobs
from ramet.models.loading import build_encoder, load_model
from ramet.models.torch_setup import set_up_torch
from ramet.play.recorded import PreparedReplay, ReplayGroup, prepare, weights_after
from ramet.rollout.keys import RolloutKey
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.played import PlayedEngine
from ramet.runs.recomposed import recomposed
from ramet.tracking.run_log import recording
from ramet.types import Group, Rollout, SegmentKind
from ramet_replay.replay_test.differences import Difference, DifferenceKind, first_difference
from ramet_replay.replay_test.played import PlayedTool, RecordedCalls, RecordedTokens, token_ids
from ramet_replay.replay_test.recorded_tree import RecordedTree

logger = logging.getLogger(__name__)
Floats = NDArray[np.float32]
SHOWN = 10  # different differences, and failures, on the screen


class ToolResults(StrEnum):
    RECORDED = "recorded"  # calls get their recorded results
    RUN = "run"  # they run, and their results are compared


class Compare(StrEnum):
    SAMPLE = "sample"
    LOGPROBS = "logprobs"


HOW = {
    Compare.SAMPLE: "sampled again from the same seeds",
    Compare.LOGPROBS: "recorded tokens given, and their log-probabilities compared",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTestOptions:
    """The rollouts to test, and how. None: all of them; of `compare`: as the run can."""

    tools: ToolResults = ToolResults.RECORDED
    compare: Compare | None = None
    samples: int = 0  # continuations of each rollout that differs
    step: int | None = None
    limit: int | None = None  # groups
    one_model: bool = False  # one model for all rollouts, instead of the weights that sampled each

    def problems(self, config: Config) -> list[str]:
        most, wrong = config.rollout.max_concurrent, []
        if not 0 <= self.samples <= most:
            wrong.append(f"--samples {self.samples}: must be at least 0 and at most rollout.max_concurrent={most}")
        if self.limit is not None and self.limit < 1:
            wrong.append(f"--limit {self.limit}: must be at least 1")
        if self.compare is Compare.SAMPLE and not _repeats(config):
            wrong.append(
                "--compare sample: only run.deterministic=true with engine=torch samples the same tokens again; "
                "compare logprobs"
            )
        return wrong


@dataclass(slots=True, kw_only=True)
class ReplayOutcome:
    """The result of one rollout; neither `difference`, `fault` nor `untested`: it is as recorded."""

    group: ReplayGroup
    rollout: Rollout
    reward: float | None  # recorded
    difference: Difference | None = None
    now: Rollout | None = None  # the replayed one, or the one that it would have forked from
    fault: str | None = None  # of infrastructure, before any difference
    untested: str | None = None
    samples: list[float | None] = field(default_factory=list)  # rewards; None: masked


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTestResult:
    """`outcomes` in the order of the record."""

    run: Path
    compare: Compare
    outcomes: list[ReplayOutcome]


def run(
    folder: Path,
    overrides: Sequence[str] = (),
    options: ReplayTestOptions | None = None,
    *,
    config_dir: Path | None = None,
) -> ReplayTestResult:
    """Test the run in `folder`, which is not changed.

    Raises `ConfigErrors` before anything starts, and `ConfigError` if no rollout can be tested.
    """
    options = options or ReplayTestOptions()
    with recording():
        resolved = recomposed(folder, overrides, config_dir=config_dir)
        raise_all(options.problems(resolved.config))
        compare = options.compare or (Compare.SAMPLE if _repeats(resolved.config) else Compare.LOGPROBS)
        with_engine = compare is Compare.SAMPLE or options.samples > 0
        prepared = prepare(folder, resolved, step=options.step, limit=options.limit, with_engine=with_engine)
        set_up_torch(resolved.config.run)
        result = run_async(_Test(folder, prepared, options, compare).run())
        if all(outcome.untested is not None for outcome in result.outcomes):
            why = "; ".join(dict.fromkeys(str(outcome.untested) for outcome in result.outcomes))
            raise ConfigError(f"{folder}: none of {len(result.outcomes)} rollouts can be tested: {why}")
        return result


def _repeats(config: Config) -> bool:
    return config.run.deterministic and config.engine.name == "torch"


def _why_untested(group: ReplayGroup, rollout: Rollout) -> str | None:
    """Why the rollout cannot run again; None: it can."""
    if rollout.fault is not None:
        return "masked: its tools or its engine failed"
    if rollout.prefix is not None or any(r.prefix for r in group.rollouts if r.id == rollout.id.split(".")[0]):
        return "began with a stored prefix of another step"
    return None


def _key(group: ReplayGroup, rollout: Rollout) -> str:
    return RolloutKey(group.plan.salt, group.record.step, group.name, rollout.id).text


async def _play(rollouts: LocalRollouts, groups: Sequence[ReplayGroup]) -> dict[int, dict[str, Rollout]]:
    """Run groups again; returns their rollouts by id, by the `id()` of the group."""

    def alike(group: ReplayGroup) -> tuple[int, int, bool, str]:
        return group.record.step, len(group.rollouts), group.plan.branch, group.benchmark

    now: dict[int, dict[str, Rollout]] = {}
    for _, same in groupby(sorted(groups, key=alike), alike):
        part = list(same)
        tasks, names = [group.task for group in part], [group.name for group in part]
        request = RolloutRequest(tasks=tasks, step=part[0].record.step, plan=part[0].plan, names=names)
        for group, played in zip(part, await rollouts.run(request), strict=True):
            now[id(group)] = {rollout.id: rollout for rollout in played.rollouts}
    return now


class _Test:
    """One test of a run."""

    def __init__(self, folder: Path, prepared: PreparedReplay, options: ReplayTestOptions, compare: Compare) -> None:
        self.folder, self.prepared, self.options, self.compare = folder, prepared, options, compare
        self.config = prepared.resolved.config
        self.encoder = build_encoder(self.config)
        self._engine: Engine | None = None
        self._loaded = 0  # the version of its weights

    async def run(self) -> ReplayTestResult:
        outcomes = [
            ReplayOutcome(
                group=group,
                rollout=scored.rollout,
                reward=scored.reward,
                untested=_why_untested(group, scored.rollout)
                or (None if self.options.one_model else group.missing_weights(self.folder, self.config)),
            )
            for group in self.prepared.groups
            for scored in group.record.group.rollouts
        ]
        with tempfile.TemporaryDirectory(prefix="ramet-test-") as folder:
            services = RunServices(folder=Path(folder), seed=self.config.run.seed)
            try:
                await self._replay(outcomes, services)
                if self.compare is Compare.LOGPROBS:
                    await asyncio.to_thread(self._compare_logprobs, outcomes)
                if self.options.samples and any(outcome.difference for outcome in outcomes):
                    await self._sample(outcomes, services)
            finally:
                if self._engine is not None:
                    await self._engine.close()
        return ReplayTestResult(run=self.folder, compare=self.compare, outcomes=outcomes)

    def _version(self, group: ReplayGroup) -> int:
        """Number of updates of the weights to test the group with."""
        return 0 if self.options.one_model else group.n_updates

    async def _replay(self, outcomes: Sequence[ReplayOutcome], services: RunServices) -> None:
        """Run the groups again, and note the first difference of each rollout."""
        tested = [o.group for o in outcomes if o.untested is None]
        groups = sorted({id(group): group for group in tested}.values(), key=lambda group: group.benchmark)
        now: dict[int, dict[str, Rollout]] = {}
        for _, of_benchmark in groupby(groups, lambda group: group.benchmark):  # two may have the same tasks
            now |= await self._run_again(list(of_benchmark), services)
        for outcome in outcomes:
            if outcome.untested is None:
                self._note(outcome, now[id(outcome.group)])

    async def _run_again(self, groups: Sequence[ReplayGroup], services: RunServices) -> dict[int, dict[str, Rollout]]:
        """Run groups of one benchmark, or of a training, again; returns their rollouts as `_play` does."""
        sample = self.compare is Compare.SAMPLE
        by_key = {_key(group, rollout): rollout for group in groups for rollout in group.rollouts}
        engine = self._build_engine() if sample else None
        info = self._recorded_info() if engine is None else engine.info
        script = RecordedTokens(by_key, self.encoder, sample=sample)
        tree = RecordedTree({id(group.task): group.rollouts for group in groups})
        now: dict[int, dict[str, Rollout]] = {}
        async with self._rollouts(services, PlayedEngine(script, info, engine), tree, by_key) as rollouts:
            for version, of_version in groupby(sorted(groups, key=self._version), self._version):
                if sample:
                    await self._load(rollouts, version)
                now |= await _play(rollouts, list(of_version))
        return now

    @asynccontextmanager
    async def _rollouts(
        self, services: RunServices, engine: Engine, policy: RecordedTree | None, by_key: dict[str, Rollout]
    ) -> AsyncIterator[LocalRollouts]:
        """Rollouts with recorded results of tools where `by_key` has some and the options say so."""
        played = bool(by_key) and self.options.tools is ToolResults.RECORDED
        box = await open_tools(self.config, services, expected=self.prepared.tools.sets, for_schemas=played)
        if played:
            calls = RecordedCalls(by_key)
            box.tools = {name: (PlayedTool(tool.schema, calls), limits) for name, (tool, limits) in box.tools.items()}
        rollouts = LocalRollouts(
            self.config,
            self.encoder,
            components=self.prepared.components,
            tools=box,
            engine=engine,
            branch_policy=policy,
        )
        try:
            yield rollouts
        finally:
            await rollouts.close()

    async def _load(self, rollouts: LocalRollouts, version: int) -> None:
        """Give the engine the weights after so many updates."""
        if version != self._loaded:
            await rollouts.update_weights(
                weights_after(self.folder, self.config, version).items(), rollouts.version + 1
            )
            self._loaded = version

    def _build_engine(self) -> Engine:
        if self._engine is None:
            self._engine = build_engine(self.config, self.encoder)
        return self._engine

    def _recorded_info(self) -> EngineInfo:
        longest = getattr(self.config.engine.params, "max_tokens", None) or max_sequence_tokens(self.config)
        able = frozenset({Capability.DETERMINISTIC})
        return EngineInfo(name="recorded", capabilities=able, vocab_size=self.encoder.vocab_size, max_tokens=longest)

    def _note(self, outcome: ReplayOutcome, rollouts: dict[str, Rollout]) -> None:
        recorded = {rollout.id: rollout for rollout in outcome.group.rollouts}
        nearest = outcome.rollout
        while nearest.id not in rollouts and nearest.parent is not None:
            nearest = recorded[nearest.parent]
        now = outcome.now = rollouts[nearest.id]
        difference = first_difference(outcome.rollout, now, self.encoder.decode)
        before = difference is not None and (
            difference.kind in (DifferenceKind.PROMPT, DifferenceKind.SAMPLED)
            or difference.turn < now.segments[-1].turn
        )
        if now.fault is not None and not before:
            outcome.fault = f"{now.fault.where}: {now.fault.message}"
        elif difference is None and nearest is not outcome.rollout:
            outcome.fault = f"its fork from rollout {outcome.rollout.parent} did not start again"
        else:
            outcome.difference = difference

    def _compare_logprobs(self, outcomes: Sequence[ReplayOutcome]) -> None:
        """Compare the log-probabilities of the recorded tokens before the difference that a rollout has, if any."""
        model, loaded = load_model(self.config.model), 0
        for outcome in sorted(outcomes, key=lambda outcome: self._version(outcome.group)):
            if outcome.untested is not None or outcome.fault is not None:
                continue
            if (version := self._version(outcome.group)) != loaded:
                model.load_state_dict(weights_after(self.folder, self.config, version), strict=False)
                loaded = version
            recorded = _recorded_logprobs(outcome)
            if recorded is None:
                outcome.untested = None if outcome.difference else "its engine recorded no log-probabilities"
                continue
            positions, values = recorded
            if not positions:
                continue
            sequence = SampleSequence(ids=list(token_ids(outcome.rollout)), sampled=positions)
            now = logprobs(model, [sequence], outcome.group.plan.temperature or 1.0).numpy()
            outcome.difference = self._logprob_difference(outcome.rollout, positions, values, now) or outcome.difference

    def _logprob_difference(
        self, rollout: Rollout, positions: Sequence[int], recorded: Floats, now: Floats
    ) -> Difference | None:
        threshold, distance = DEFAULTS[self.config.model.dtype], np.abs(now - recorded)
        largest = threshold.statistic is Statistic.LARGEST
        size = float(distance.max() if largest else np.quantile(distance, 0.99))
        if size <= threshold.value:
            return None
        first = int(np.argmax(~(distance <= threshold.value)))
        turns = [segment.turn for segment in rollout.segments for _ in segment.token_ids]
        text = self.encoder.decode([token_ids(rollout)[positions[first]]])
        return Difference(
            kind=DifferenceKind.SAMPLED,
            turn=turns[positions[first]],
            token=positions[first],
            what=f"log-probability of {text!r}",
            recorded=f"{recorded[first]:.4f}",
            now=f"{now[first]:.4f}",
        )

    async def _sample(self, outcomes: Sequence[ReplayOutcome], services: RunServices) -> None:
        """Continue from where rollouts differ, with tools that run; rollouts that differ alike share their samples."""
        starts = {id(o): _start(o) for o in outcomes if o.difference is not None and o.now is not None}
        unique: dict[tuple[int, int, tuple[int, ...]], list[ReplayOutcome]] = {}
        for outcome in outcomes:
            if (turn := starts.get(id(outcome))) is not None:
                unique.setdefault((id(outcome.group), turn, _beginning(outcome, turn)), []).append(outcome)
        built = self._build_engine()
        engine = PlayedEngine(lambda request: None, built.info, built)  # which is not closed with the rollouts
        async with self._rollouts(services, engine, None, {}) as rollouts, self._scoring(services):
            for (_, turn, _), alike in unique.items():
                first, group = alike[0], alike[0].group
                assert first.now is not None
                await self._load(rollouts, self._version(group))
                request = group.continued(first.now, turn, self.options.samples, "test")
                (played,) = await rollouts.run(request)
                rewards = await self._rewards(group.benchmark, played)
                for outcome in alike:
                    outcome.samples = rewards

    @asynccontextmanager
    async def _scoring(self, services: RunServices) -> AsyncIterator[None]:
        if self.prepared.benchmarks:
            async with started(self.prepared.benchmarks, services):
                yield
            return
        scorer = self.prepared.components.scorer
        await start_rewards(scorer.rewards, services)
        try:
            yield
        finally:
            await scorer.aclose()

    async def _rewards(self, benchmark: str, group: Group) -> list[float | None]:
        if not benchmark:
            scored = await self.prepared.components.scorer.score(group, leave_out=False)
            return [rollout.reward for rollout in scored.rollouts]
        judge_of = self.prepared.benchmarks[benchmark]
        judged = await asyncio.gather(*(judge(benchmark, judge_of, rollout) for rollout in group.rollouts))
        return [judgement.scores.get(judge_of.info.metrics[0]) for judgement in judged]


def _recorded_logprobs(outcome: ReplayOutcome) -> tuple[list[int], Floats] | None:
    """Positions and log-probabilities of the sampled tokens before the difference; None if none were recorded."""
    end = len(token_ids(outcome.rollout)) if outcome.difference is None else outcome.difference.token
    positions, values, n = list[int](), list[float](), 0
    for segment in outcome.rollout.segments:
        if segment.is_sampled:
            if segment.logprobs is None:
                return None
            positions += range(n, n + len(segment))
            values += segment.logprobs
        n += len(segment)
    kept = sum(position <= end for position in positions)
    return positions[:kept], np.array(values[:kept], dtype=np.float32)


def _start(outcome: ReplayOutcome) -> int | None:
    """The turn to continue from: the one that differs, or the one after another result of it; None: it has ended."""
    difference, now = outcome.difference, outcome.now
    assert difference is not None and now is not None
    first = next(i for i, segment in enumerate(now.segments) if segment.kind is SegmentKind.TURN)
    if difference.kind in (DifferenceKind.SAMPLED, DifferenceKind.CALL) or difference.token < sum(
        map(len, now.segments[:first])
    ):
        return difference.turn
    return difference.turn + 1 if now.segments[-1].turn > difference.turn else None


def _beginning(outcome: ReplayOutcome, turn: int) -> tuple[int, ...]:
    assert outcome.now is not None
    return tuple(token for segment in outcome.now.segments if segment.turn < turn for token in segment.token_ids)


def describe(result: ReplayTestResult) -> list[str]:
    """Describe a test in lines: what was compared, the first differences, equal ones once, and counts by kind."""
    outcomes = result.outcomes
    differing = [outcome for outcome in outcomes if outcome.difference is not None]
    failed = [outcome for outcome in outcomes if outcome.fault is not None]
    untested = Counter(outcome.untested for outcome in outcomes if outcome.untested is not None)
    lines = [f"{result.run}: {len(outcomes) - untested.total()} rollouts, {HOW[result.compare]}"]
    lines += [f"not tested: {n} rollouts: {why}" for why, n in untested.items()]
    alike: dict[tuple[str, ...], list[ReplayOutcome]] = {}
    for outcome in differing:
        alike.setdefault((str(outcome.difference), *describe_samples(outcome)), []).append(outcome)
    for (difference, *samples), (first, *others) in islice(alike.items(), SHOWN):
        more = f" and {len(others)} more" if others else ""
        lines += [f"{_name(first)}{more}: {difference}", *(f"  {text}" for text in samples)]
    if hidden := sum(map(len, islice(alike.values(), SHOWN, None))):
        lines.append(f"… and {hidden} more; --junit FILE lists all")
    lines += [f"{_name(outcome)}: failed: {outcome.fault}" for outcome in failed[:SHOWN]]
    kinds = Counter(str(outcome.difference.kind) for outcome in differing if outcome.difference is not None)
    counted = f" ({', '.join(f'{kind} {n}' for kind, n in kinds.most_common())})" if kinds else ""
    lines.append(f"differences: {len(differing)}{counted}; failures of infrastructure: {len(failed)}")
    return lines


def describe_samples(outcome: ReplayOutcome) -> list[str]:
    """Describe the rewards of the continuations; nothing where there are none."""
    if not outcome.samples:
        return []
    rewards = [reward for reward in outcome.samples if reward is not None]
    masked = f", {len(outcome.samples) - len(rewards)} masked" if len(rewards) < len(outcome.samples) else ""
    spread = ", ".join(f"{value:g} x{n}" for value, n in sorted(Counter(rewards).items()))
    recorded = "masked" if outcome.reward is None else f"{outcome.reward:g}"
    mean = f"mean {fmean(rewards):.3g} of {len(rewards)} ({spread})" if rewards else "none"
    return [f"reward: recorded {recorded}, from here again {mean}{masked}"]


def _name(outcome: ReplayOutcome) -> str:
    group = outcome.group
    return f"{group.benchmark or f'step {group.record.step}'}, {group.name}, rollout {outcome.rollout.id}"
