"""One key of a configuration dataclass, written in one place: its default, its help and what it may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a value may be. `above` excludes its bound. No value (None) is always allowed, NaN in no range."""

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    def problem(self, value: Any) -> str | None:
        """What the message says after `key=value: `; None for an allowed value."""
        if value is None or self._holds(value):
            return None
        if self.choices:
            return f"allowed: {', '.join(self.choices)}"
        words = {"at least": self.minimum, "over": self.above, "at most": self.maximum}
        return "must be " + " and ".join(
            f"{word} {_plain(bound)}" for word, bound in words.items() if bound is not None
        )

    def _holds(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
        )


def _plain(bound: float) -> str:
    """As people write it: an integer with all its digits."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def problem_of(field: dataclasses.Field[Any], value: Any) -> str | None:
    """What is wrong with a value of this field; None for an allowed one, and for a field made without `option`."""
    allowed: Allowed | None = field.metadata.get("allowed")
    return None if allowed is None else allowed.problem(value)


def check_options(settings: Any) -> None:
    """For the `__post_init__` of a component's options: raise `ValueError` that names every value out of its range."""
    problems = [
        f"{field.name} {problem}, got {value}"
        for field in dataclasses.fields(settings)
        if (problem := problem_of(field, value := getattr(settings, field.name)))
    ]
    if problems:
        raise ValueError("; ".join(problems))


@overload
def option(
    default: T,
    help: str | None = None,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> T: ...
@overload
def option(*, factory: Callable[[], T], help: str | None = None) -> T: ...
def option(default: Any = dataclasses.MISSING, help: str | None = None, *, factory: Any = None, **allowed: Any) -> Any:
    """A dataclass field. `help` is what `ramet JOB --help` shows; what is not allowed is found by `config.checks`."""
    metadata = {"help": help, "allowed": Allowed(**allowed) if allowed else None}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)
