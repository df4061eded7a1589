"""Whether a model was chosen by a validation, and on which tasks.

The best of several validations is too high by chance on the tasks that it was chosen on. For 15 validations on 30 tasks
with k=1 that is about 12 points (the expected maximum of 15 normal values is 1.7 standard deviations). So `ramet train`
warns of a choice on a split that `ramet eval` reports, `ramet export` writes the choice next to the weights, and an
evaluation copies it into its results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ramet.data.benchmarks import PREFIX, benchmark_of, is_benchmark
from ramet.io.atomic import write_file

FILE = "selection.json"  # in the folder of a model
TEST = "test"  # the split that `ramet eval` reads unless set otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The checkpoint that `train.keep_best` kept."""

    step: int
    metric: str
    value: float
    data: tuple[str, ...]  # `data.valid` of its run

    def chose_on(self, benchmark: str, split: str) -> bool:
        return f"{PREFIX}{benchmark}/{split}" in deciding(self.metric, self.data)

    def write(self, folder: Path) -> None:
        write_file(folder / FILE, json.dumps(asdict(self), indent=1) + "\n")


def read_selection(folder: Path) -> Selection | None:
    """Read how a validation chose the model; None if none did, or Ramet did not write the file."""
    try:
        body = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return Selection(
            step=int(body["step"]), metric=str(body["metric"]), value=float(body["value"]), data=tuple(body["data"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def deciding(metric: str, data: Iterable[str]) -> list[str]:
    """Return the sources of `data.valid` that are benchmarks whose tasks a validation's metric is made of."""
    benchmarks = [source for source in data if is_benchmark(source)]
    if metric.startswith("valid/reward"):
        return benchmarks
    return [source for source in benchmarks if metric.startswith(f"valid/{benchmark_of(source)[0]}/")]


def selection_problem(metric: str | None, data: Sequence[str]) -> str | None:
    """A warning if `train.keep_best` chooses on a benchmark's test split."""
    tests = [source for source in deciding(metric or "", data) if benchmark_of(source)[1] == TEST]
    if not tests:
        return None
    names = ",".join(benchmark_of(source)[0] for source in tests)
    return (
        f"train.keep_best={metric}: chooses the checkpoint on {', '.join(tests)}, which `ramet eval "
        f"benchmarks=[{names}]` reports: the best of many validations is too high there by chance. Choose on other "
        "tasks, such as a part of the training data or another split, and report these"
    )
