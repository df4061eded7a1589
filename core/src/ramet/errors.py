"""The four errors of the contract. Each has another cause, and Ramet treats it by its cause.

* `ConfigError`: the user's mistake (configuration, files, names). The command line prints it and exits with 1.
* `PluginError`: a plugin broke the contract. Names the plugin and its distribution.
* `ToolError`: the model's mistake (wrong arguments, its code raised). Its text goes to the model.
* `InfraError`: infrastructure failed (time-outs, outages, a dead worker). The rollout is masked; it never becomes a
  reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class RametError(Exception):
    """Base of all errors that Ramet raises on purpose."""


class ConfigError(RametError):
    """A setting, file or name of the user is wrong. The message names the error, the value and the allowed values.

    `component`: the component whose call raised it, once the message names it.
    """

    component: str | None = None


class ConfigErrors(ConfigError):
    """Several `ConfigError`s found by the checks before a run, reported together."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigErrors], tuple[list[str]]]:
        return type(self), (self.problems,)  # by default it would be rebuilt from the joined text, letter by letter


class PluginError(RametError):
    """A plugin broke the contract (wrong shape, NaN, wrong number of scores, import failure, duplicate name)."""


class ToolError(RametError):
    """The model used a tool wrongly. The text is shown to the model; the rollout continues and is rewarded."""


class InfraError(RametError):
    """Infrastructure failed (time-out, outage, lost worker). Retried where that is safe, then the rollout is masked.

    `retry_after_s`: the service said when to come back (a 429, an open circuit). The call then waits that long, which
    counts neither as an attempt nor against the tool's time-out or slot; the rollout's deadline bounds all waits.
    """

    def __init__(self, message: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt_infra_error, (type(self), self.args, self.__dict__)


def _rebuilt_infra_error(kind: type[InfraError], args: tuple[Any, ...], state: dict[str, Any]) -> InfraError:
    """Exceptions are pickled only by their arguments, which leaves keyword arguments out."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class MissingHere(str):
    """A problem of only this machine, which lacks a part that the machine of the planned run may have.

    A run on this machine is refused for it. A plan for another machine lists the `missing` parts instead, and the
    checks that could not be made (`unchecked`; empty: the plan itself makes them).
    """

    def __new__(cls, problem: str, *, missing: str = "", unchecked: str = "") -> MissingHere:
        instance = super().__new__(cls, problem)
        instance.missing = missing
        instance.unchecked = unchecked
        return instance

    missing: str
    unchecked: str


def set_aside_missing(problems: list[str]) -> list[MissingHere]:
    """Take what is only missing on this machine out of `problems`."""
    missing = [problem for problem in problems if isinstance(problem, MissingHere)]
    problems[:] = [problem for problem in problems if not isinstance(problem, MissingHere)]
    return missing


def raise_all(problems: Iterable[str]) -> None:
    """Raise one `ConfigErrors` with every problem, or return without problems."""
    all_problems = list(problems)
    if all_problems:
        raise ConfigErrors(all_problems)


@contextmanager
def collected(problems: list[str]) -> Iterator[None]:
    """Add what a check raises to `problems`. An outage is raised if it is the only one: the same command may succeed
    a moment later, and its exit code says so.
    """
    try:
        yield
    except ConfigErrors as error:
        problems += error.problems
    except RametError as error:
        if isinstance(error, InfraError) and not problems:
            raise
        problems.append(str(error))
