"""`ramet recipes [NAME]`: what `experiment=NAME` can choose, whether what it needs is installed, and what it takes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.cli.terminal import Parser, say
from ramet.config.hydra_adapter import SHIPPED
from ramet.config.recipes import Recipe, recipe, recipes, unread_recipes
from ramet.config.schema import Config
from ramet.errors import ConfigError, raise_all, set_aside_missing

if TYPE_CHECKING:
    from ramet.planning.memory import MemoryPlan  # torch

logger = logging.getLogger(__name__)


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet recipes",
        add_help=False,
        usage="ramet recipes [NAME [--on 8xH100]] [--config-dir DIR]",
        description="Complete experiments to begin with, chosen with experiment=NAME: Ramet's and your own.",
        epilog="Yours are the files experiment/NAME.yaml of hydra_configs/ in the working directory, or of DIR.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this one")
    parser.add_argument(
        "--on",
        metavar="[NODESx]DEVICESxMEMORY|GPU",
        help="print what each of such GPUs would hold instead, and where they are named (8xH100) a step's estimated "
        "seconds; of a model of the hub all but the weights is fetched",
    )
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    options = parser.read(arguments)
    if options is None:
        return 0
    if options.name is not None:
        chosen, on = recipe(options.name, options.config_dir), options.on
        say(chosen.text.rstrip("\n") if on is None else "\n".join(_plan(chosen, on, options.config_dir)))
        return 0
    if options.on is not None:
        raise ConfigError(f"--on {options.on}: plans one recipe; give its NAME")
    for problem in unread_recipes(options.config_dir):
        logger.warning("%s", problem)
    listed = recipes(options.config_dir)
    say("\n\n".join("\n".join(_lines(entry)) for entry in listed) if listed else "There are no recipes.")
    return 0


def _plan(entry: Recipe, on: str, config_dir: Path | None) -> list[str]:
    from ramet import api
    from ramet.planning.drawn import Expected
    from ramet.planning.memory_report import table
    from ramet.planning.step_time import step_time
    from ramet.planning.time_report import time_table

    config = api.compose([f"experiment={entry.name}"], job=entry.job, config_dir=config_dir).config
    placement, memory = planned(config, entry.job, on)
    time = time_table(step_time(memory, Expected()), Expected()) if entry.job == "train" else []
    return [*placement, *table(memory), *time]


def planned(config: Config, job: str, on: str) -> tuple[list[str], MemoryPlan | str]:
    """Return where the job would run on the GPUs `on`, and what each would hold. Data are neither fetched nor read.

    Raises `ConfigErrors` if it does not fit.
    """
    from ramet.cluster.check import check_cluster
    from ramet.components.build import Components
    from ramet.models.check import read_config
    from ramet.models.mixture import check_dense
    from ramet.planning.memory import plan_memory
    from ramet.planning.memory_report import check_memory
    from ramet.planning.memory_sft import plan_sft_memory
    from ramet.planning.placement import check_machine, check_placement, machine_of, plan_devices
    from ramet.runs.hub_inputs import local_model
    from ramet.sft.strategies import check_strategy

    machine, trains = machine_of(config, on), job == "train"
    path = local_model(config.model.path, "model.path", weights=False)
    config = replace(config, model=replace(config.model, path=path))
    placement: list[str] = []
    if job == "sft":
        problems = check_strategy(config, None, machine)
        memory = plan_sft_memory(config, machine)
    else:
        parts = Components(config)
        needs = parts.advantage.needs | parts.loss.needs if trains else frozenset()
        problems = [*check_cluster(config), *check_placement(config, machine, trains=trains)]
        placement = [str(plan_devices(config, machine, trains=trains))]
        memory = plan_memory(config, machine, needs=needs, trains=trains)
    problems += check_dense(read_config(config.model)) if job != "eval" else []
    set_aside_missing(problems)
    raise_all([*check_machine(config, machine), *problems, *check_memory(memory)])
    return placement, memory


def _lines(entry: Recipe) -> Iterator[str]:
    yield f"experiment={entry.name}"
    if entry.unreadable:
        yield f"  cannot be read: {entry.unreadable}"
    if entry.description:
        yield f"  {entry.description}"
    facts = {
        "reproduces": entry.reproduces,
        "model": entry.model,
        "data": ", ".join(entry.data),
        "hardware": entry.hardware,
        "needs": " ".join(entry.needs),
    }
    yield from (f"  {name}: {fact}" for name, fact in facts.items() if fact)
    if entry.needs:
        yield f"  not installed: {' '.join(entry.missing)}" if entry.missing else "  all of it is installed"
    if entry.provider != SHIPPED or entry.unreadable:
        yield f"  from: {entry.path}" + "".join(f", not the one of {other}" for other in entry.hidden)
