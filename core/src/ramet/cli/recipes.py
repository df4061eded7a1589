"""`ramet recipes [NAME]`: what `experiment=NAME` can choose, and whether what it needs is installed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from ramet.cli.terminal import Parser, say
from ramet.config.hydra_adapter import SHIPPED
from ramet.config.recipes import Recipe, recipe, recipes, unread_recipes

logger = logging.getLogger(__name__)


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet recipes",
        add_help=False,
        usage="ramet recipes [NAME] [--config-dir DIR]",
        description="Whole experiments to begin with, chosen with experiment=NAME: those of ramet, and your own.",
        epilog="Yours are the files experiment/NAME.yaml of hydra_configs/ in the working directory, or of DIR.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this one")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    options = parser.read(arguments)
    if options is None:
        return 0
    if options.name is not None:
        say(recipe(options.name, options.config_dir).text.rstrip("\n"))
        return 0
    for problem in unread_recipes(options.config_dir):
        logger.warning("%s", problem)
    listed = recipes(options.config_dir)
    say("\n\n".join("\n".join(_lines(entry)) for entry in listed) or "no recipes")
    return 0


def _lines(entry: Recipe) -> Iterator[str]:
    yield f"experiment={entry.name}"
    if entry.unreadable:
        yield f"  cannot be read: {entry.unreadable}"
    if entry.description:
        yield f"  {entry.description}"
    if entry.needs:
        yield f"  needs: {' '.join(entry.needs)}"
        yield f"  not installed: {' '.join(entry.missing)}" if entry.missing else "  all of it is installed"
    if entry.provider != SHIPPED or entry.unreadable:
        yield f"  from: {entry.path}" + "".join(f", not that of {other}" for other in entry.hidden)
