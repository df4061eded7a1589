"""One key of a configuration dataclass, the core's or a plugin's: every fact of it in one place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar, overload

T = TypeVar("T")


class Resume(StrEnum):
    """The effect of another value of a key on a resumed run."""

    NUMBERS = "numbers"  # alters what is trained or measured: refused without run.allow_config_change
    SAFE = "safe"  # alters nothing of that
    ORDER = "order"  # decides which tasks a step of a training gets: refused always
    SCHEDULE = "schedule"  # the length of the run: safe, unless policy.schedule stretches over it
    MEMORY = "memory"  # other sums of the same numbers, or rollouts that end in another order: safe, unless
    #                    run.deterministic
    VALIDATION = "validation"  # of the validations of a training: safe, unless train.keep_best compares them
    MEASURED = "measured"  # as `validation`, and alters what an evaluation measures
    FAILURES = "failures"  # safe in an evaluation: decides how much fails, not how it is measured
    PATIENCE = "patience"  # as `failures`, if the value is raised


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The allowed values of a key. `above` and `below` exclude their bounds. None is always allowed, NaN never."""

    minimum: float | None = None
    above: float | None = None
    below: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    whole: bool = False

    def problem(self, value: Any) -> str | None:
        """Return what the message says after `key=value: `; None for an allowed value."""
        if value is None or self._holds(value):
            return None
        return f"allowed: {self}" if self.choices else f"must be {self}"

    def __str__(self) -> str:
        """Return the range in words: `at least 0 and at most 1`."""
        if self.choices:
            return ", ".join(self.choices)
        words = {"at least": self.minimum, "over": self.above, "under": self.below, "at most": self.maximum}
        bounds = [
            "finite" if bound == math.inf else f"{word} {_plain(bound)}"
            for word, bound in words.items()
            if bound is not None
        ]
        return " and ".join([*(["a whole number"] if self.whole else []), *bounds])

    def _holds(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (
            (not self.whole or value == value // 1)
            and (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (self.maximum is None or value <= self.maximum)
        )


def _plain(bound: float) -> str:
    """Write a number as people do: an integer with all its digits."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


AT_LEAST_1 = Allowed(minimum=1, whole=True)
# Keys of a mapping of sampling: `evaluate.sampling`, and the sampling of a benchmark.
SAMPLING = {
    "temperature": Allowed(minimum=0),
    "top_p": Allowed(above=0, maximum=1),
    "top_k": Allowed(minimum=0, whole=True),
    "min_p": Allowed(minimum=0, maximum=1),
    "repetition_penalty": Allowed(above=0),
}


def entry_problems(field: dataclasses.Field[Any], value: Any) -> Iterator[str]:
    """Yield problems of entries of a mapping whose field declares `entries`, each beginning with its name."""
    entries: Mapping[str, Allowed | None] = field.metadata.get("entries") or {}
    for name, entry in (value or {}).items() if entries else ():
        allowed = entries.get(name)
        if name not in entries:
            yield f"{name}: no such key; allowed: {', '.join(entries)}"
        elif allowed is not None and (problem := allowed.problem(entry)):
            yield f"{name}={entry}: {problem}"


def problem_of(field: dataclasses.Field[Any], value: Any) -> str | None:
    """Return the problem of a value of this field; None for an allowed one, and for a field without `option`."""
    allowed = field.metadata.get("allowed")  # of a plugin's own metadata anything may be called so
    return allowed.problem(value) if isinstance(allowed, Allowed) else None


def option_problems(settings: Any, prefix: str = "") -> Iterator[str]:
    """Yield every value of a component's options that is out of its range, options of options too."""
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), f"{prefix}{field.name}"
        if problem := problem_of(field, value):
            yield f"{name} {problem}, got {value}"
        elif dataclasses.is_dataclass(value):
            yield from option_problems(value, f"{name}.")


@overload
def option(
    default: T,
    help: str | None = None,
    *,
    minimum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    resume: Resume | None = None,
    instead: Mapping[str, str | None] | None = None,
    aka: str = "",
) -> T: ...
@overload
def option(
    *,
    factory: Callable[[], T],
    help: str | None = None,
    resume: Resume | Mapping[str, Resume] | None = None,
    jobs: str = "",
    instead: Mapping[str, str | None] | None = None,
    aka: str | Mapping[str, str] = "",
    entries: Mapping[str, Allowed | None] | None = None,
) -> T: ...
def option(
    default: Any = ...,
    help: str | None = None,
    *,
    factory: Any = None,
    resume: Any = None,
    jobs: str = "",
    instead: Mapping[str, str | None] | None = None,
    aka: str | Mapping[str, str] = "",
    entries: Mapping[str, Allowed | None] | None = None,
    **allowed: Any,
) -> Any:
    """Make a dataclass field with everything that is known of a key.

    help: what `ramet JOB --help` shows. minimum, above, below, maximum, choices: allowed values; checked at the start.
    resume: the effect of another value on a resumed run; without it, the results differ. For options within options
    it may be a mapping, by name. jobs: of a section, which jobs build it. instead: jobs that build the section and do
    not read this key -> the key to set instead, or None. aka: names in other trainers, for "did you mean".
    entries: of a mapping, the names that it may have, each with what its value may be; `aka` may then be by entry.
    """
    metadata = {
        "help": help,
        "allowed": Allowed(**allowed) if allowed else None,
        "resume": resume,
        "jobs": jobs.split(),
        "instead": instead or {},
        "aka": aka.split() if isinstance(aka, str) else {entry: names.split() for entry, names in aka.items()},
        "entries": entries,
    }
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=dataclasses.MISSING if default is ... else default, metadata=metadata)
