"""Doctor checks: what `ramet doctor` asks of every package (entry-point group `ramet.doctor`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

C = TypeVar("C")


class Severity(StrEnum):
    """What a finding means for a run. A problem makes `ramet doctor` end with exit code 1."""

    OK = "ok"
    NOTE = "note"  # works, and is not what it could be
    WARNING = "warning"  # works until something common happens
    PROBLEM = "problem"  # does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of `ramet doctor`. `fix` says what to do, as a command or a key where possible; None for what is ok.

    Texts never hold a key or password, not even in part: say which variable holds it.
    """

    what: str  # a few words: "search key", "isolation"
    severity: Severity
    text: str  # what was found
    fix: str | None = None
    mend: InitVar[str | None] = None  # the former name of `fix`, which checks of earlier plugins use

    def __post_init__(self, mend: str | None) -> None:
        if mend is not None and self.fix is None:
            object.__setattr__(self, "fix", mend)


setattr(Finding, "mend", property(lambda finding: finding.fix))  # noqa: B010  # or its default would be read


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorContext:
    """What a check may look at. `options`: those of each configured component, as `tools.search` -> its dataclass."""

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

    It changes nothing, and raises nothing for what is wrong with the machine or the configuration: that is a finding.
    """

    def __call__(self, context: DoctorContext) -> Iterable[Finding]: ...
