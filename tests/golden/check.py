"""`python tests/golden/check.py [FILE…]`: does our code agree with the values of the reference implementation?

Without a file, those of `values/` are checked. One line per function with the number of cases that passed, failed and
are not implemented, and one for every known difference. Exit code 1 if a case failed or a known difference is none any
more, 2 for a file that is no file of golden values. Which function of ours answers to which of the reference's is in
the adapters next to this file.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

if str(Path(__file__).parent) not in sys.path:  # these modules are next to this file, not in a package
    sys.path.insert(0, str(Path(__file__).parent))

import golden_algorithms
import golden_rewards
import golden_rollout
import golden_tools
from golden_adapter import Adapter
from golden_cases import BadFile, Case, difference, read_cases
from golden_known import known_difference

ADAPTERS: dict[str, Adapter] = {
    **golden_algorithms.ADAPTERS,
    **golden_rewards.ADAPTERS,
    **golden_rollout.ADAPTERS,
    **golden_tools.ADAPTERS,
}
VALUES = Path(__file__).parent / "values"
SHOWN = 5  # failures of one function


@dataclass(slots=True)
class Count:
    passed: int = 0
    missing: int = 0
    failures: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)  # differences on purpose

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failures)} failed, {self.missing} not implemented"


def check(cases: Sequence[Case]) -> dict[str, Count]:
    """Function -> what its cases gave."""
    counts: dict[str, Count] = {}
    for case in cases:
        count = counts.setdefault(case.function, Count())
        adapter = ADAPTERS.get(case.function)
        if adapter is None or not adapter.covers(case):
            count.missing += 1
        elif problem := _problem(adapter, case):
            _explain(count, adapter, case, problem)
        elif known := known_difference(case):
            count.failures.append(f"{case.where}: no longer differs from the release, but is listed ({known.why})")
        else:
            count.passed += 1
    return counts


def _explain(count: Count, adapter: Adapter, case: Case, problem: str) -> None:
    """A case that disagrees with the release: as a known difference says, or as a failure."""
    known = known_difference(case)
    other = known and _problem(adapter, dataclasses.replace(case, output=known.ours(case)))
    if known is None:
        count.failures.append(f"{case.where}: {problem}")
    elif other:
        count.failures.append(f"{case.where}: neither the release's nor as listed ({known.why}): {other}")
    else:
        count.known.append(f"{case.where}: {problem}; {known.why}")


def _problem(adapter: Adapter, case: Case) -> str | None:
    try:
        found = adapter.run(case.input)
    except Exception as error:  # whatever ours raises is a finding about this case
        return None if case.raises else f"{type(error).__name__}: {error}"
    if case.raises:
        return f"returned {found!r:.120}, expected an error"
    return difference(found, adapter.expected(case))


def main(paths: Sequence[str]) -> int:
    files = list(map(Path, paths)) or sorted(VALUES.glob("*.json*"))
    try:
        counts = check([case for file in files for case in read_cases(file)])
    except BadFile as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    width = max(map(len, counts), default=0)
    for function, count in sorted(counts.items()):
        print(f"{function:{width}}  {count}")
        for failure in count.failures[:SHOWN]:
            print(f"    {failure}")
        for known in count.known:
            print(f"    known difference: {known}")
    return 1 if any(count.failures for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
