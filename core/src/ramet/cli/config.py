"""`ramet config`: a configuration, or where one of its values comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ramet.cli.commands import JOBS
from ramet.cli.terminal import Parser, say
from ramet.config.compose import compose, layers
from ramet.config.provenance import ValueOrigin


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet config",
        add_help=False,
        usage="ramet config [--job train|sft|eval] [--why KEY] [--config-dir DIR] [key=value …]",
        description="The configuration that a job would get with these keys, or where one of its values comes from.",
    )
    parser.add_argument("overrides", nargs="*", help="as for the job itself")
    parser.add_argument("--job", choices=list(JOBS), default="train", help="default: train")
    parser.add_argument("--why", metavar="KEY", help="everything that sets KEY; the last one counts")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    options = parser.read(arguments)
    if options is None:
        return 0
    if options.why is None:
        say(compose(options.overrides, job=options.job, config_dir=options.config_dir).text.rstrip("\n"))
    else:
        composed = layers(options.overrides, job=options.job, config_dir=options.config_dir)
        say(_origins_text(options.why, composed.origins(options.why)))
    return 0


def _origins_text(key: str, origins: Sequence[ValueOrigin]) -> str:
    """Every file, preset or argument that set a key, one a line; the last one counts."""
    widths = [max(len(getattr(origin, part)) for origin in origins) for part in ("kind", "value")]
    lines = [f"  {origin.kind:{widths[0]}}  {origin.value:{widths[1]}}  {origin.where}" for origin in origins]
    return "\n".join([f"{key} = {origins[-1].value}", *lines])
