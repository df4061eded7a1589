"""Checks of `ramet doctor`: of the machine (entry-point group `ramet.doctor`), and of a run (`ramet.diagnoses`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ramet.types.rollout import Group

C = TypeVar("C")


class Severity(StrEnum):
    """The effect of a finding on a run. A problem makes `ramet doctor` end with exit code 1."""

    OK = "ok"
    NOTE = "note"  # works, and could work better
    WARNING = "warning"  # works until something common happens
    PROBLEM = "problem"  # does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRef:
    """The place of a recorded rollout in its run."""

    kind: str  # "step", "valid" (a validation) or "eval"
    step: int
    task: str
    rollout: str  # `Rollout.id`

    def __str__(self) -> str:
        return f"{self.kind} {self.step}, {self.task}, rollout {self.rollout}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of `ramet doctor`. `fix` says what to do, as a command or a key where possible; None if it is ok.

    Texts never contain a key or password, not even in part: name the variable that has it.
    """

    what: str  # a few words: "search key", "isolation"
    severity: Severity
    text: str  # the finding
    fix: str | None = None
    rollouts: tuple[RolloutRef, ...] = ()  # that show it, of a check of a run
    page: str | None = None  # that explains it, as "docs/doctor.md#sure"
    name: str | None = None  # of the check of a run that found it
    mend: InitVar[str | None] = None  # the former name of `fix`, which checks of earlier plugins use

    def __post_init__(self, mend: str | None) -> None:
        if mend is not None and self.fix is None:
            object.__setattr__(self, "fix", mend)


setattr(Finding, "mend", property(lambda finding: finding.fix))  # noqa: B010  # or its default would be read


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorContext:
    """The inputs of a check. `options`: name of each configured component (`tools.search`) -> its options."""

    options: Mapping[str, Any] = field(default_factory=dict)
    offline: bool = False  # True: ask nothing of the network

    def configured(self, kind: type[C], default: str) -> Mapping[str, C]:
        """The options of this class by the key of their component; with none configured, those that `default` (as
        `tools.search`) has by default.

        Raises what `kind()` raises.
        """
        of_kind = {key: value for key, value in self.options.items() if isinstance(value, kind)}
        return of_kind or {default: kind()}


class DoctorCheck(Protocol):
    """A function of the group `ramet.doctor`. May be `async def`; is given `CHECK_TIMEOUT_S` of `ramet.doctor.job`.

    It changes nothing, and raises nothing for problems of the machine or the configuration: these are findings.
    """

    def __call__(self, context: DoctorContext) -> Iterable[Finding]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGroup:
    """The rollouts of one task, as a run recorded them. `group.scores` has the reward of each rollout, by its id."""

    kind: str  # as `RolloutRef.kind`
    step: int
    group: Group

    def ref(self, rollout: str) -> RolloutRef:
        return RolloutRef(kind=self.kind, step=self.step, task=self.group.task.id, rollout=rollout)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """The input of a check of a run. `groups` is a sample in the order of steps: a run may have recorded far more."""

    folder: Path
    job: str  # "train", "sft" or "eval"
    config: Mapping[str, Any]  # of `config.yaml`, nested as there
    metrics: Mapping[str, Mapping[int, float]]  # name (docs/metrics.md) -> step -> value, in the order of steps
    groups: tuple[RecordedGroup, ...] = ()

    def values(self, name: str) -> list[float]:
        """Return the values of a metric in the order of steps; empty if it was not logged."""
        return list(self.metrics.get(name, {}).values())

    def option(self, key: str, default: Any = None) -> Any:
        """Return the value of a key such as `rollout.max_turns`; `default` where it is missing or null."""
        node: Any = self.config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return default if node is None else node


class RunCheck(Protocol):
    """A function of the group `ramet.diagnoses`. It reads and changes nothing; what it raises becomes a finding."""

    def __call__(self, run: StoredRun) -> Iterable[Finding]: ...
