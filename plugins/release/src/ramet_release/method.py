"""The rollout method of the released schedule: a worker's rollouts are one batch, in rounds.

Under Ray each worker's share of a step is one batch. The table of entropies is never cleared: it outlives batches,
steps and validations, and is empty again in a process that is started again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from random import Random

from ramet import Group, RolloutStep
from ramet_release.checks import protocol_problems, training_problems
from ramet_release.internals import (
    Capability,
    Config,
    RolloutWorker,
    Share,
    Tags,
    first_error,
    raise_all,
    stable_seed,
)
from ramet_release.monitoring import Monitor
from ramet_release.policy import LockstepPolicy
from ramet_release.sampling import RoundEngine
from ramet_release.schedule import LockstepBatch
from ramet_release.tools import ReleasedTools
from ramet_release.turn_player import LockstepPrompt, TurnPlayer, TurnRules

logger = logging.getLogger(__name__)


class LockstepMethod:
    """Runs the rollouts of a `LockstepPolicy` for one worker.

    `draw`: numbers in [0, 1) for the branch decisions; None: by the seed.
    """

    def __init__(self, policy: LockstepPolicy, draw: Callable[[], float] | None = None) -> None:
        self.policy = policy
        self.base: dict[int, float] = {}  # place in a batch -> entropy of the first segment ever sampled there
        self._draw = draw

    def problems(self, config: Config, step: RolloutStep, capabilities: frozenset[Capability]) -> Iterator[str]:
        yield from protocol_problems(step, (), ())
        yield from training_problems(config, capabilities)

    def join(self, worker: RolloutWorker) -> None:
        schemas = [runner.schema for runner in worker.tools.values()]
        raise_all(protocol_problems(worker.step, schemas, [component.name for component in worker.stateful]))
        assert isinstance(worker.step, Tags)
        self._worker = worker
        self._places = asyncio.Semaphore(worker.config.max_concurrent)
        self._rules = TurnRules(
            encoder=worker.encoder,
            tools=ReleasedTools(worker.tools),
            config=worker.config,
            result_tag=worker.step.config.result,
            answer_tag=worker.step.config.answer,
        )
        if worker.deterministic:
            logger.warning(
                "the table of entropies begins empty in a resumed run, as in the released code: with "
                "run.deterministic=true a resumed run differs from one that was not interrupted"
            )

    async def play(self, share: Share) -> list[Group]:
        """Run rounds over all groups, each of which is complete when the last round is over."""
        groups = (await self.batch(share)).groups()
        for group in groups:
            share.done(group)
        return groups if share.plan.kept else []

    async def batch(self, share: Share) -> LockstepBatch:
        """The groups, run to their end."""
        ends_at = asyncio.get_running_loop().time() + share.deadline.left()
        schemas_of = self._worker.jobs.schemas_of
        prompts = [
            LockstepPrompt(task=job.task, name=job.name, segment=job.prompt, tools=schemas_of(job.task))
            for job in share.jobs
        ]
        engine = self._round_engine(share)
        batch = LockstepBatch(
            player=TurnPlayer(prompts=prompts, rules=self._rules, engine=engine, base=self.base, counts=share.counts),
            policy=self.policy,
            step=share.step,
            base=self.base,
            draw=self._draw or self._seeded(share),
            step_ends_at=ends_at,
        )
        async with first_error():
            await batch.run(await self._roots(prompts, engine, share.step, ends_at))
        return batch

    def _round_engine(self, share: Share) -> RoundEngine:
        worker = self._worker
        return RoundEngine(
            engine=worker.engine,
            plan=share.plan,
            seed=worker.seed,
            first_tokens=worker.config.first_tokens,
            eos_ids=worker.encoder.eos_ids,
            versions=share.versions,
            watchdog=worker.watchdog,
            places=self._places,
        )

    async def _roots(
        self, prompts: Sequence[LockstepPrompt], engine: RoundEngine, step: int, ends_at: float
    ) -> list[int]:
        """Return how many rows each prompt starts with: all of them where nothing may branch, as in validation.

        There the release runs a monitored rollout too, and its result is always 1, of 1; here it is left out.
        """
        size, policy = engine.plan.group_size, self.policy
        if not engine.plan.branch:
            return [size] * len(prompts)
        if policy.probe_tokens is None:
            return [policy.roots(size)] * len(prompts)
        most = asyncio.get_running_loop().time() + self._rules.config.deadline_s
        monitor = Monitor(prompts=prompts, rules=self._rules, engine=engine, step=step, ends_at=min(ends_at, most))
        monitored = await monitor.run(policy.probe_tokens)
        return [policy.monitored_roots(size, trial.root, trial.segments) for trial in monitored]

    def _seeded(self, share: Share) -> Callable[[], float]:
        """The draws of a batch. Shares of one step differ by the names of their tasks."""
        names = (job.name for job in share.jobs)
        return Random(stable_seed("lockstep", self._worker.seed, share.plan.salt, share.step, *names)).random
