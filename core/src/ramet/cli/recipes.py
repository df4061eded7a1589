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
    found = parser.read(arguments)
    if found is None:
        return 0
    if found.name is not None:
        say(recipe(found.name, found.config_dir).text.rstrip("\n"))
        return 0
    for problem in unread_recipes(found.config_dir):
        logger.warning("%s", problem)
    listed = recipes(found.config_dir)
    say("\n\n".join("\n".join(_lines(one)) for one in listed) or "no recipes")
    return 0


def _lines(one: Recipe) -> Iterator[str]:
    yield f"experiment={one.name}"
    if one.unreadable:
        yield f"  cannot be read: {one.unreadable}"
    if one.description:
        yield f"  {one.description}"
    if one.needs:
        yield f"  needs: {' '.join(one.needs)}"
        yield f"  not installed: {' '.join(one.missing)}" if one.missing else "  all of it is installed"
    if one.provider != SHIPPED or one.unreadable:
        yield f"  from: {one.path}" + "".join(f", not that of {other}" for other in one.hidden)
