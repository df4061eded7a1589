"""`ramet JOB -m key=1,2 …`: one run for every combination. Each is the run that `ramet JOB` with its values would be.

All points are composed before the first begins, so that a mistake in any of them costs nothing. With `run.name=NAME`
the points are called `NAME-0`, `NAME-1`, …, in the order of the combinations, so the same command resumes them.
"""

from __future__ import annotations

import importlib
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramet.cli.terminal import print_problems, say
from ramet.config.compose import compose
from ramet.config.hydra_adapter import SweepRefused, sweep
from ramet.config.request import SweptOverrides, sweep_points
from ramet.config.resolved import Resolved
from ramet.config.trust import trusted_recipes, trusting
from ramet.errors import ConfigError, ConfigErrors, InfraError, PluginError, RametError, raise_all
from ramet.runs.hub_inputs import fetched
from ramet.tracking.log import set_up_logging

if TYPE_CHECKING:
    from ramet.history.training import Training

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Runs one point, possibly in another process: what it holds is pickled."""

    job: str
    module: str
    config_dir: Path | None
    debug: bool
    swept: SweptOverrides
    trusted: tuple[Path, ...]
    notes: Path  # folder in which each point notes its run; a point on another machine cannot reach it

    def __call__(self, number: int, overrides: list[str]) -> None:
        """Prints what went wrong and raises it: the launcher continues with the other points."""
        set_up_logging(logging.DEBUG if self.debug else logging.INFO)
        overrides = self.swept.point(overrides)
        logger.info("point %d: %s", number, " ".join(overrides))
        note: dict[str, Any] = {"number": number, "overrides": overrides, "state": "failed", "run": None, "file": None}
        try:
            resolved = fetched(self.resolved(number, overrides))
            if (name := resolved.config.run.name) is not None:
                note["run"] = str(Path(resolved.config.run.root, name))
            result = importlib.import_module(self.module).run(resolved)
            note |= {"state": "finished", "run": str(result.run)}
            note["file"] = str(result.file) if self.job == "eval" else None
        except RametError as error:
            problems = error.problems if isinstance(error, ConfigErrors) else [str(error)]
            print_problems(ConfigErrors(f"point {number}: {problem}" for problem in problems))
            note["run"] = None if isinstance(error, ConfigError) else note["run"]  # what is there is not this point's
            raise
        except KeyboardInterrupt:
            note["state"] = "stopped"
            raise
        finally:
            if self.notes.is_dir():
                (self.notes / f"{number}.json").write_text(json.dumps(note), encoding="ascii")

    def resolved(self, number: int, overrides: Sequence[str]) -> Resolved:
        with trusting(set(self.trusted) - set(trusted_recipes())):  # in a process of its own nothing is trusted yet
            return compose(_named(overrides, number), job=self.job, config_dir=self.config_dir)


def run_sweep(
    job: str, module: str, overrides: Sequence[str], *, config_dir: Path | None = None, dry_run: bool = False
) -> None:
    """Run all points, or print the plan of each. Raises before the first for what is wrong with any, or at the end."""
    with tempfile.TemporaryDirectory(prefix="ramet-sweep-") as folder:
        debug = logging.getLogger("ramet").isEnabledFor(logging.DEBUG)
        point = Point(
            job=job,
            module=module,
            config_dir=config_dir,
            debug=debug,
            swept=SweptOverrides(tuple(overrides)),
            trusted=trusted_recipes(),
            notes=Path(folder),
        )
        _plan_or_run(overrides, point, dry_run=dry_run)


def _plan_or_run(overrides: Sequence[str], point: Point, *, dry_run: bool) -> None:
    points = sweep_points(overrides)
    if points is None and dry_run:
        raise ConfigError("--dry-run: which points another sweeper than Hydra's own will choose is not known before")
    composed = _composed(point, points or [])
    if not dry_run:
        _run(point)
        return
    plan = importlib.import_module(point.module).plan
    say(
        "\n\n".join(
            f"point {n}: {' '.join(resolved.overrides)}\n{plan(fetched(resolved))}"
            for n, resolved in enumerate(composed)
        )
    )


def _run(point: Point) -> None:
    try:
        sweep(point.swept.for_hydra(), point, config_dir=point.config_dir)
    except SweepRefused:
        raise
    except RametError as error:
        kind = ConfigError if isinstance(error, ConfigError | PluginError) else InfraError
        raise kind("the sweep is over, and not every point of it ended well; the errors are above") from error
    finally:
        _show_results(point)


def _show_results(point: Point) -> None:
    """Print the results of all points in one table, and the command that compares them."""
    notes = [json.loads(file.read_text(encoding="ascii")) for file in point.notes.iterdir()]
    notes.sort(key=lambda note: int(note["number"]))
    if point.job == "eval":
        _show_evaluations([note for note in notes if note["file"] is not None])
    else:
        _show_trainings(notes)


def _show_evaluations(notes: Sequence[Mapping[str, Any]]) -> None:
    """Print the scores of the evaluations that ended well, and the overrides that set each apart."""
    if not notes:
        return
    from ramet.evaluate.files import read_summary
    from ramet.evaluate.tables import print_tables, sweep_cells

    points = [(str(note["number"]), read_summary(Path(note["file"]))) for note in notes]
    print_tables([sweep_cells(points)])
    for note in notes:  # below it: in a column of a narrow table they would be cut to pieces
        say(f"point {note['number']}: {' '.join(_varying(note, notes))}")
    say(f"task by task: ramet compare {' '.join(note['file'] for note in notes)}")


def _show_trainings(notes: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each point, also of those that failed: keys that vary, result, validation, steps, state."""
    if not notes:
        return
    from ramet.evaluate.tables import print_tables
    from ramet.history.tables import SweepPoint, point_cells

    points = []
    for note in notes:
        values = dict(text.lstrip("+").split("=", 1) for text in _varying(note, notes) if "=" in text)
        points.append(
            SweepPoint(
                number=note["number"],
                values={key: value for key, value in values.items() if key != "run.name"},
                training=_training(note["run"]),
                state=note["state"],
            )
        )
    print_tables([point_cells(points)])
    if runs := [str(note["run"]) for note, shown in zip(notes, points, strict=True) if shown.training is not None]:
        say(f"side by side: ramet compare {' '.join(runs)}")


def _training(run: str | None) -> Training | None:
    """Return the training in the directory of a point; None where it has no step."""
    from ramet.history.training import Training

    try:
        return None if run is None else Training.read(Path(run))
    except (ConfigError, OSError):  # it never began
        return None


def _varying(note: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the overrides of a point that not all points have."""
    shared = set.intersection(*({*other["overrides"]} for other in notes)) if len(notes) > 1 else set[str]()
    return [text for text in note["overrides"] if text not in shared]


def _composed(point: Point, points: Sequence[Sequence[str]]) -> list[Resolved]:
    """The configuration of every point. Raises `ConfigErrors` with the problems of all of them."""
    composed, problems = [], list[str]()
    for number, overrides in enumerate(points):
        try:
            composed.append(point.resolved(number, overrides))
        except ConfigErrors as error:
            problems += error.problems
    raise_all(dict.fromkeys([*problems, *_shared(composed)]))
    return composed


def _shared(resolved: Sequence[Resolved]) -> list[str]:
    """Outputs that more than one point would write to."""
    problems = []
    outputs = {
        "run.name": [point.config.run.name for point in resolved],
        "run.out": [point.config.run.out for point in resolved],
    }
    for key, values in outputs.items():
        set_values = [value for value in values if value is not None]
        twice = sorted({value for value in set_values if set_values.count(value) > 1})
        problems += [
            f"{key}={value}: {set_values.count(value)} points of the sweep would write to it" for value in twice
        ]
    return problems


def _named(overrides: Sequence[str], number: int) -> list[str]:
    """A name that holds for all points becomes one for each. Names that points have of their own cannot be separated
    from it here, so they get the number too.
    """
    return [f"{text}-{number}" if _is_name(text) else text for text in overrides]


def _is_name(text: str) -> bool:
    key, _, value = text.partition("=")
    return key.lstrip("+") == "run.name" and value not in ("null", "")
