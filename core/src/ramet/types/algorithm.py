"""Inputs and outputs of advantage estimators and policy losses (hooks 3 and 4).

Letters: N rollouts, T tokens. Estimators see padded `[N, T]` tensors on the response axis (everything after the
prompt); losses see one packed axis `[T]`. A field that costs computation
is None unless the algorithm names it in `needs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

from ramet.types.rollout import StopReason

if TYPE_CHECKING:  # the contract must import without torch
    from torch import Tensor


class Need(StrEnum):
    """Optional inputs that an algorithm or a branch policy may ask for. Checked before anything starts."""

    ENTROPY = "entropy"  # exact per-token entropy
    OLD_LOGPROBS = "old_logprobs"  # the trainer's own before the update (estimators; losses always have them)
    REFERENCE = "reference"  # log-probabilities of the frozen reference policy
    VALUES = "values"  # a critic
    GREEDY_ROLLOUT = "greedy_rollout"  # one more rollout a task at temperature 0
    RESCORED = "rescored"  # log-probabilities of the sampled tokens under another model or another context
    PROBED = "probed"  # log-probabilities of a text of the estimator at the beginning of each turn
    REWARDS = "rewards"  # branch policies: `Scored`, as soon as a rollout's reward is known
    EARLIER_TURNS = "earlier_turns"  # branch policies: forks of stateful rollouts at turns before the newest
    LATE_EVENTS = "late_events"  # branch policies: events after the budget is used up, to `Stop` rollouts
    PREFIXES = "prefixes"  # branch policies: stored prefixes of earlier steps, for `StartFrom`


SCOPES = ("batch", "group")  # of an estimator: what it is called with
MIN_GROUP = 2  # valid rollouts of a group, unless the estimator says otherwise (`min_group`)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """One step's trainable rollouts. Groups with fewer valid members than the estimator needs were left out before.

    `node_ids` distinguish tokens, not values. Two rows have the same number at a position exactly where their rollouts
    share the token itself, by a fork. That includes forks of a masked rollout, which is not a row. Turns are counted
    from 0 in `turn_ids`, `turn_rewards` and `state_ids`. `state_ids` number the names that the environment gives to
    states (`Environment.state_key`). A first turn without a name gets the number of its first observation (`begin`):
    equal tokens, equal number.

    A row is a rollout, whose turns follow one another whatever their thread. `thread_ids` says in which thread a token
    was added; a later thread that has it as context does not repeat it. A token's log-probability, entropy and value
    are those in its own thread.
    """

    rewards: Tensor  # [N] float32, weighted sum of the reward parts
    reward_parts: Mapping[str, Tensor]  # name -> [N]; NaN where a reward does not apply
    mask: Tensor  # [N, T] bool, True on sampled tokens
    group_ids: Tensor  # [N] int64
    turn_ids: Tensor  # [N, T] int64, -1 on padding; they count along the row
    thread_ids: Tensor  # [N, T] int64, all 0 where rollouts have one thread; -1 on padding
    node_ids: Tensor  # [N, T] int64, equal exactly where rollouts share the very same token, -1 on padding
    parent: Tensor  # [N] int64 row of the parent, -1 for roots (and where the parent was masked)
    fork_position: Tensor  # [N] int64 response position where own tokens begin, 0 for roots
    stop: Sequence[StopReason]  # [N] why each rollout ended
    n_tool_calls: Tensor  # [N] int64, the shared prefix's included
    engine_logprobs: Tensor  # [N, T] float32 (mu)
    policy_versions: Tensor  # [N, T] int64, -1 on inserted tokens
    old_logprobs: Tensor | None = None  # [N, T] float32 (pi_old), with Need.OLD_LOGPROBS
    token_rewards: Tensor | None = None  # [N, T]; None unless a reward gave some
    turn_rewards: Tensor | None = None  # [N, turns] float32, NaN where a turn gave none; None unless a step gave some
    state_ids: Tensor | None = None  # [N, turns] int64, equal where turns began in the same state; -1: unnamed
    entropies: Tensor | None = None  # [N, T] nats
    ref_logprobs: Tensor | None = None  # [N, T]
    values: Tensor | None = None  # [N, T]
    greedy_rewards: Tensor | None = None  # [N] of the greedy rollout of the row's group, token rewards included
    rescored_logprobs: Tensor | None = None  # [N, T] float32; NaN on the sampled tokens of a row without a context
    probe_logprobs: Tensor | None = None  # [N, turns] float32, mean over the probe's tokens; NaN where there is none
    reward_weights: Mapping[str, float] = field(default_factory=dict)  # `rewards.NAME.weight` of each configured reward


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageOutput:
    advantages: Tensor  # [N, T] float32, zero outside the mask, no gradient
    returns: Tensor | None = None  # [N, T], targets of a critic
    metrics: Mapping[str, float] = field(default_factory=dict)
    # [N, T] float32, at least 0: how much a token counts in the policy's loss, its KL and entropy terms and its
    # denominators. None: 1.
    weights: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A text whose probability is measured at the beginning of each turn (`Need.PROBED`), as the gold answer."""

    text: str  # measured; special tokens are not parsed
    before: str = ""  # between the turn's beginning and the text, not measured; special tokens are parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticOptions:
    """How the critic is trained. An estimator with `Need.VALUES` may say it in a property `critic`."""

    lr: float = 1e-5
    warmup_steps: int = 0  # first training steps in which only the critic is updated
    value_clip: float = 0.5  # a value moves at most so far from the one before the update, in the loss


class AdvantageEstimator(Protocol):
    """Hook 3. Called once per step on the complete batch, or once per group (`scope`), without gradients.

    Optional: `min_group: int`, the valid rollouts that a group needs; groups with fewer are left out. Default 2: a
    single rollout has nothing to be compared with. 1: the baseline is not the group.
    `discounted`: a token's advantage is made of the token rewards from there on, and no group's spread scales it. It
    gets the KL of `train.kl_estimator=k1-reward` among `token_rewards`. Otherwise, or left out, the core adds the
    KL's part to the advantages that it returns. `reads_threads`: it takes rows with several threads
    (`AdvantageInputs.thread_ids`) for what they are; without it a run with an agent, which can have them, is refused.
    `scope`: "group" if the advantages of a group depend on that group only. Then it is called once for each group,
    which is padded to its own longest response, and its metrics are averaged over the groups by their rows. With
    `cluster=ray` that is in the processes that ran the groups. The padded inputs of a complete step of long rollouts
    take tens of gigabytes. Default "batch".

    What scores tokens and texts for `Need.RESCORED` and `Need.PROBED` is the model `train.teacher`, or without one the
    policy before the update, at the temperature of sampling.
    `contexts(group: Sequence[Rollout], rewards: Sequence[float]) -> Sequence[str | None]`: with `Need.RESCORED`, what
    the scoring model reads in addition, a text for each rollout of one group, None where there is none. It is added at
    the end of the last message of the prompt. Left out: the sampled tokens are scored in their own context, and a run
    without a teacher is refused.
    `probe(task: Task) -> Probe | None`: with `Need.PROBED`, the text; None: the task has none.
    """

    needs: frozenset[Need]
    discounted: bool = False
    reads_threads: bool = False
    scope: Literal["batch", "group"] = "batch"

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """One packed micro-batch. All tensors are `[T]` unless said otherwise; one sequence follows the other.

    A sequence is the own tokens of one thread, nearly always all of a rollout. The threads of a rollout may be in
    different micro-batches.
    """

    logprobs: Tensor  # float32, with gradient: pi
    old_logprobs: Tensor  # float32: pi_old
    engine_logprobs: Tensor  # float32: mu
    advantages: Tensor  # float32
    mask: Tensor  # bool, True on trained tokens
    sequence_ids: Tensor  # int64, 0-based within the micro-batch
    rollout_ids: Tensor  # int64, 0-based within the micro-batch: equal where sequences are threads of one rollout
    group_ids: Tensor  # int64
    turn_ids: Tensor  # int64
    policy_versions: Tensor  # int64
    entropies: Tensor | None = None  # float32, with gradient
    ref_logprobs: Tensor | None = None
    returns: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """`per_token` may contain anything outside the mask. Metrics are detached `[T]` tensors, averaged over the mask."""

    per_token: Tensor  # [T], with gradient
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class PolicyLoss(Protocol):
    """Hook 4. Called once per micro-batch. A token's loss may depend on its own sequence, never on another one.

    A micro-batch has complete sequences, also under sequence parallelism: `logprobs` are gathered before the call. The
    core masks, applies the off-policy weight and aggregates by `train.loss_aggregation` with global counts.

    `aggregation`: the modes that the loss is correct with; None: any. Another one is refused before the start.
    `reads_ratio`: the loss compares `logprobs` with `old_logprobs`. A step of one optimiser step, in which both are the
    same, is warned of before the start.
    `zero_without_advantage`: where all advantages of a sequence are 0, so are its loss and its gradient. Then such
    sequences are counted, and not computed unless a KL or entropy term asks for them. All three may be left out.
    """

    needs: frozenset[Need]
    aggregation: frozenset[str] | None = None
    reads_ratio: bool = False
    zero_without_advantage: bool = False

    def __call__(self, batch: LossInputs) -> LossOutput: ...
