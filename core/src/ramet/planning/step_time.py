"""Seconds of a training step, before anything ran: from the configuration, the model's shapes and a GPU's figures.

Figures, formulas and assumptions of all parts are on one page, docs/plan.md. All of it is an estimate. Not counted:
rewards, validations, groups that are sampled again, and rows without a signal, which no update computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ramet.cluster.check import chosen_transfer
from ramet.config.schema import KlEstimator, OldLogprobs
from ramet.planning.disk import checkpoint_bytes
from ramet.planning.drawn import Drawn, Expected, draw
from ramet.planning.gpus import BANDWIDTH, GPUS, Gpu
from ramet.planning.memory import MemoryPlan, trained_models
from ramet.planning.time_rollouts import RolloutTime, rollout_time
from ramet.planning.time_update import HOST, UpdateTime
from ramet.types import Need

ROLLOUTS, LOGPROBS, UPDATE, SYNC, SAVE, DRIVER = (
    "rollouts", "log-probabilities", "update", "sync, sleep and wake", "checkpoint", "driver and record",
)  # fmt: skip
# Assumptions, in seconds: no GPU measured them.
SLEEP_S = 2.0  # engines that sleep and wake, and the policy's rest
LOAD_S = 1.5  # of one sync, whatever its size
SAVE_S = 3.0  # of one checkpoint that is written during the training
RAY_S, LOCAL_S = 3.0, 0.5  # of a step: calls, advantages, metrics
TOKEN_S = 2.5e-7  # of the driver for each token: rows and record
# Assumptions, in bytes/s.
STORE = 2.5e9  # new weights into the object store, and from there to an engine
DISK = 1e9  # a checkpoint that is waited for, of a node


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step by phase; `ahead`: rollouts run during the rest (`train.staleness`)."""

    plan: MemoryPlan
    phases: Mapping[str, float]
    drawn: Drawn
    rollouts: RolloutTime
    update: UpdateTime
    ahead: bool

    @property
    def seconds(self) -> float:
        rest = sum(self.phases.values()) - self.phases[ROLLOUTS]
        if self.ahead:
            return max(self.phases[ROLLOUTS], rest - self.phases[SYNC]) + self.phases[SYNC]
        return rest + self.phases[ROLLOUTS]

    @property
    def bound(self) -> str:
        """The longest phase."""
        return max(self.phases, key=lambda phase: self.phases[phase])


def step_time(plan: MemoryPlan | str, expected: Expected) -> StepTime | str:
    """The estimate for the GPUs of a plan, or why there is none."""
    if isinstance(plan, str):
        return plan
    machine, config = plan.inputs.machine, plan.inputs.config
    if not machine.cuda:
        return "not estimated: on a CPU the model and other programs share the cores"
    if machine.gpu is None:
        return f"not estimated: no speed is known of these GPUs; --on takes a name in place of GiB: {', '.join(GPUS)}"
    if plan.engine is None:
        return f"not estimated: no formula for engine={config.engine.name}"
    gpu, drawn = GPUS[machine.gpu], draw(config, expected)
    rollouts = rollout_time(plan, drawn, gpu, expected.tool_s)
    per_node = (machine.devices or 1) // (machine.nodes or 1)
    policy, values = trained_models(plan.inputs, plan.placement)
    update = UpdateTime(model=policy, drawn=drawn, gpu=gpu, per_node=per_node)
    critic = None if values is None else replace(update, model=values)
    return StepTime(
        plan=plan,
        phases={ROLLOUTS: rollouts.seconds, **_passes(plan, update, critic), **_rest(plan, update)},
        drawn=drawn,
        rollouts=rollouts,
        update=update,
        ahead=config.train.staleness > 0,
    )


def _passes(plan: MemoryPlan, update: UpdateTime, critic: UpdateTime | None) -> dict[str, float]:
    """Seconds of the policy, the reference, the teacher and the critic, as `policy.rank` calls them."""
    train, needs, teacher = plan.inputs.config.train, plan.inputs.needs, plan.inputs.teacher
    several = train.epochs * train.minibatches > 1
    in_reward = train.kl_coef > 0 and train.kl_estimator is KlEstimator.K1_REWARD
    early = in_reward or Need.OLD_LOGPROBS in needs
    old = train.old_logprobs is OldLogprobs.TRAINER and (several or early)
    reference = train.kl_coef > 0 or Need.REFERENCE in needs
    scored = len(needs & {Need.RESCORED, Need.PROBED})
    passes = old + reference + (scored if teacher is None else 0)
    before = passes * update.forward() if passes else 0.0
    if scored and teacher is not None:
        before += scored * replace(update, model=replace(update.model, shape=teacher)).forward()
    seconds = update.update()
    if critic is not None:
        before, seconds = before + critic.forward(), seconds + critic.update()
    return {LOGPROBS: before, UPDATE: seconds}


def _rest(plan: MemoryPlan, update: UpdateTime) -> dict[str, float]:
    config, drawn = plan.inputs.config, update.drawn
    size = checkpoint_bytes(plan.inputs)
    if config.train.async_save:
        save = SAVE_S + size / update.model.shards / HOST  # each replica copies its own
    else:
        save = size / DISK / (plan.inputs.machine.nodes or 1)
    tokens = float(drawn.prompt * len(drawn.lengths) + drawn.lengths.sum())
    return {
        SYNC: sync_s(plan, update.gpu, update),
        SAVE: save / config.train.save_every,
        DRIVER: (LOCAL_S if config.cluster.name == "local" else RAY_S) + TOKEN_S * tokens,
    }


def sync_s(plan: MemoryPlan, gpu: Gpu, update: UpdateTime) -> float:
    """Seconds in which new weights reach the engines, and engines on the policy's GPUs sleep and wake."""
    size = update.model.computed * plan.inputs.shape.n_parameters
    devices = plan.placement.n_devices
    moved = {
        "ipc": 2 * size / (gpu.bandwidth * BANDWIDTH),
        "nccl": size / update.link(devices),
        "host": 2 * size / STORE,
    }[chosen_transfer(plan.inputs.config, cuda=True)]
    sleep = SLEEP_S if plan.engine is not None and plan.engine.sleeps else 0.0
    return LOAD_S + sleep + update.gathered() + moved
