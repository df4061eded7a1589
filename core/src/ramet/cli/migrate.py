"""`ramet migrate`: its arguments, and what it says about the keys."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

from ramet.cli.terminal import Parser, say
from ramet.config.catalog import LOCAL
from ramet.config.foreign import TRAINERS
from ramet.errors import ConfigError

USAGE = """ramet migrate verl SCRIPT [--config FILE] [--tasks N] [--out FILE]
       ramet migrate verl [--config FILE] [--tasks N] [--out FILE] -- key=value …
       ramet migrate llamafactory FILE.yaml [--gpus N] [--out FILE]
       ramet migrate trl SCRIPT.py [--gpus N] [--tasks N] [--out FILE]"""
OPTIONS = {"verl": ("config", "tasks"), "llamafactory": ("gpus",), "trl": ("gpus", "tasks")}


def run(arguments: Sequence[str]) -> int:
    cut = list(arguments).index("--") if "--" in arguments else len(arguments)
    options = _parser().read(arguments[:cut])
    overrides = list(arguments[cut + 1 :])
    if options is None:
        return 0
    if options.trainer is None:
        raise ConfigError(
            f"migrate: from which trainer? allowed: {', '.join(TRAINERS)}; as in `ramet migrate verl run.sh`"
        )
    if (options.source is None) == (not overrides):
        raise ConfigError(f"migrate: name one source, a file or `-- key=value …`:\n{USAGE}")
    trainer = TRAINERS[options.trainer]
    if overrides and options.trainer != "verl":
        raise ConfigError(f"migrate: `-- key=value …` is for verl; {trainer}'s settings are in a file")
    given = {name: getattr(options, name) for name in ("config", "tasks", "gpus")}
    for name in given.keys() - OPTIONS[options.trainer]:
        if given[name] is not None:
            raise ConfigError(f"migrate: --{name}={given[name]}: not read for {trainer}:\n{USAGE}")
    origin = "command_line" if options.source is None else options.source.name
    name = re.sub(r"\W+", "_", Path(origin).stem).strip("_").lower() or "migrated"
    path = options.out or Path(LOCAL) / "experiment" / f"{name}.yaml"
    made = importlib.import_module("ramet.migrate.job").migrate(options.trainer, options.source, overrides, **given)
    recipe = importlib.import_module("ramet.migrate.recipe")
    recipe.write_recipe(path, recipe.recipe_text(made, origin))
    say(recipe.report(made, path))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="ramet migrate",
        add_help=False,
        usage=USAGE,
        description="A recipe of what another trainer was started with. Every key that has no counterpart is listed "
        "with the reason, and so is what the trainer itself does not read. A script is read and never run.",
        epilog=f"The recipe is written into {LOCAL}/experiment of the working directory: experiment=NAME finds it.",
    )
    parser.add_argument("trainer", nargs="?", metavar="TRAINER", choices=list(TRAINERS), help=", ".join(TRAINERS))
    parser.add_argument("source", nargs="?", metavar="FILE", type=Path, help="the script or the file of settings")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the recipe; a file that is there is not overwritten")
    parser.add_argument("--config", metavar="FILE", type=Path, help="verl: the config file, if not next to the script")
    parser.add_argument("--tasks", metavar="N", type=int, help="rows of the training data, if the files are not here")
    parser.add_argument("--gpus", metavar="N", type=int, help="llamafactory, trl: GPUs of the launch")
    return parser
