"""Problems that are refused at once, before slow imports (torch, transformers).

They keep a job from further checks: no model, no data, a run directory of another job. Other problems that are found as
quickly are reported with them. The job itself reports the rest, all together.
"""

from __future__ import annotations

from pathlib import Path

from ramet.cluster.check import check_cluster
from ramet.config.checks import RUN_NAME, check
from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.errors import ConfigError, MissingHere
from ramet.models.folder import check_folder
from ramet.runs.hub_inputs import missing_files
from ramet.runs.manifest import MANIFEST, read_manifest
from ramet.runs.own_files import check_run_folder
from ramet.tracking.trackers import check_trackers


def early_problems(resolved: Resolved) -> list[str]:
    """Return the early problems; empty if the job can look at model and data.

    What this machine lacks is left to the job, which may plan for another one.
    """
    config, job = resolved.config, resolved.job
    nothing = [*check_folder(config.model), *missing_files(config, job), *_directory(config, job)]
    essentials = {"train": (config.data.train, config.rewards), "sft": (config.sft.data,), "eval": (config.benchmarks,)}
    if not nothing and all(essentials[job]):
        return []
    quick = [*check(resolved, job), *check_trackers(config, resolved.set_by_user)]
    quick += check_cluster(config) if job != "sft" else []
    problems = [*nothing, *quick]
    return [problem for problem in dict.fromkeys(problems) if not isinstance(problem, MissingHere)]


def _directory(config: Config, job: str) -> list[str]:
    """Why the run's directory cannot be this run's."""
    name = config.run.name
    if name is None or not RUN_NAME.fullmatch(name):
        return []
    path = Path(config.run.root) / name
    try:
        check_run_folder(path)
        recorded_job = read_manifest(path / MANIFEST).job if (path / MANIFEST).exists() else job
    except ConfigError as error:
        return [str(error)]
    except OSError:
        return []  # the error comes when it is opened
    return [] if recorded_job == job else [f"the run directory has a `ramet {recorded_job}` run, not `ramet {job}`"]
