"""One training run: the parts of its loop, and the state that a checkpoint has in addition to the policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ramet.cluster.interfaces import Backend
from ramet.config.schema import Config
from ramet.errors import ConfigError
from ramet.policy.checkpoint.store import Checkpoints
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.train.preemption import Preemption
from ramet.train.prefix_store import PrefixStore
from ramet.train.prepare import PreparedRun
from ramet.types import GroupOutcome, Tracker

FILE = "trainer.json"


@dataclass(slots=True, kw_only=True)
class TrainState:
    """`step` steps are done. The next step's tasks follow from the sampler's state and the data, its seeds and draws
    from its number and the run's seed.
    """

    data_fingerprint: str  # of the tasks that the steps count through
    step: int = 0
    seconds: float = 0.0  # of training so far, over all attempts
    sampler: dict[str, Any] = field(default_factory=dict)  # after the draws of `step`; empty before the first
    next_group: int | None = None  # its number, with `train.staleness`
    block: list[int] = field(default_factory=list)  # tasks drawn before it that its block must not have again
    outcomes: Mapping[str, tuple[GroupOutcome, ...]] = field(default_factory=dict)  # by task; for a step budget
    kl_coef: float | None = None  # of the next step, if it follows `train.kl_target`

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, data_fingerprint: str) -> TrainState:
        """Raises `ConfigError` if Ramet did not write the file, or its data are others."""
        try:
            fields = json.loads((folder / FILE).read_text(encoding="utf-8"))
            kept = fields.pop("outcomes", {})  # earlier versions have none
            state = cls(**fields, outcomes={task: tuple(_outcome(**one) for one in kept[task]) for task in kept})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{folder / FILE}: not the state of a run: {error}") from error
        if state.data_fingerprint != data_fingerprint:
            raise ConfigError(
                f"{folder}: written with other training data (sha256 {state.data_fingerprint[:12]}, now "
                f"{data_fingerprint[:12]}); restore the data, or choose another run.name"
            )
        return state


def _outcome(*, rewards: Sequence[float | None], **fields: Any) -> GroupOutcome:
    return GroupOutcome(rewards=tuple(rewards), **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    """Everything is built, checked and started; `state` is the newest checkpoint's, or a new run's."""

    config: Config
    folder: Path  # the run directory
    prepared: PreparedRun  # components and data
    backend: Backend
    policy: PolicySpec  # what the backend's policy was built from
    critic: CriticSpec | None  # None: no algorithm needs values
    checkpoints: Checkpoints
    tracker: Tracker
    state: TrainState  # changes with every step
    prefixes: PrefixStore | None  # so does it; None: the branch policy starts from no stored prefixes
    preemption: Preemption
