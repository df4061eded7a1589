"""The header of an evaluation: what is measured with what, and whether a later process may continue it.

Another model, other tasks or a smaller k is another evaluation. A larger k runs the missing rollouts. A longer
deadline, more retries or other hardware is the same one: what they change is how much fails. Any other change needs
`run.allow_config_change`, and is recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ramet.io.json_values import as_object
from ramet.runs.resume import config_differences, is_safe
from ramet.types import BenchmarkInfo

SCHEMA, SCHEMAS = 2, (1, 2)  # that is written; those that are read
CHANGES = "changes"  # in the settings: what was changed on the way
SELECTION = "selection"  # in the settings: how a validation chose the model
IMPORTED = "imported"  # in the settings: files that another program wrote, which says nothing of its settings
DERIVED = ("rules",)  # from the configuration and the benchmarks, which are compared
OPEN = ("versions", "plugins")  # may change before an evaluation is resumed, if the user allows it


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The beginning of a results file."""

    model: str
    k: int  # rollouts per task
    rules: Mapping[str, Any]  # by benchmark, what held for it (`BenchmarkRules`): JSON
    settings: Mapping[str, Any]  # the configuration as YAML, fingerprints, what was changed on the way: JSON
    benchmarks: Mapping[str, BenchmarkInfo]
    versions: Mapping[str, str]  # package -> version
    plugins: list[Mapping[str, Any]]  # the table of `ramet plugins --json`

    def body(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **plain(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Differences between an earlier header and the current one."""

    other: list[str]  # dotted names of what makes it another evaluation
    risky: list[str]  # changes that may change the numbers
    safe: list[str]

    def forbidding(self, *, allow: bool) -> list[str]:
        return self.other if allow else [*self.other, *self.risky]


def differences(earlier: Mapping[str, Any], header: Header) -> Differences:
    """Sort what differs by what a continued evaluation makes of it. `earlier` is the body of an earlier header."""
    wanted = header.body()
    other, risky, safe = list[str](), list[str](), list[str]()
    for key in sorted(differing({name: earlier.get(name) for name in wanted}, wanted)):
        section = key.partition(".")[0]
        if key == "settings.config":
            for name, before, after in config_differences(_at(earlier, key), _at(wanted, key)):
                text = f"{name} was {before}, is {after}"
                (safe if _is_safe(name, before, after) else risky).append(text)
        elif section in DERIVED or (key == "k" and earlier["k"] < header.k):
            continue
        elif key == "schema" and earlier.get(key) in SCHEMAS:
            continue
        elif section in OPEN:
            risky.append(key)
        elif key != f"settings.{CHANGES}":
            other.append(key)
    return Differences(other=other, risky=risky, safe=safe)


def _is_safe(key: str, before: Any, after: Any) -> bool:
    """Check a change by the rule for a run's directory, in which several evaluations may write files of their own."""
    if key.startswith("evaluate."):
        return key == "evaluate.k" and after > before
    return is_safe("eval", key, before, after)


def _at(body: Mapping[str, Any], key: str) -> str:
    section, _, name = key.partition(".")
    return str(body[section][name])


def differing(earlier: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of what differs, as deep as both hold objects."""
    for key in {*earlier, *wanted}:
        before, after = earlier.get(key), wanted.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differing(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}"


def plain(value: Any) -> Any:
    """Return what JSON gives back: dataclasses as objects, tuples as lists, enumerations as strings."""
    return json.loads(json.dumps(value, allow_nan=False, default=as_object))
