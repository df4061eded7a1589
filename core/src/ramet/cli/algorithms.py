"""`ramet algorithms [NAME]`: the presets of `algorithm=`, with their papers, what differs and when to use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ramet.cli.help_text import columns, entry
from ramet.cli.terminal import Parser, say
from ramet.config.presets import Preset, preset, presets

COLUMN = 11  # where facts begin


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet algorithms",
        add_help=False,
        usage="ramet algorithms [NAME] [--config-dir DIR]",
        description="Presets of training algorithms, chosen with algorithm=NAME: of ramet, of plugins, and yours.",
        epilog="Yours are the files algorithm/NAME.yaml of hydra_configs/ in the working directory, or of DIR.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this one: its keys and its file")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    options = parser.read(arguments)
    if options is None:
        return 0
    if options.name is None:
        say("\n\n".join("\n".join(_facts(listed)) for listed in presets(options.config_dir)))
        return 0
    chosen = preset(options.name, options.config_dir)
    say("\n".join([*_facts(chosen), *_keys(chosen), "", chosen.text.rstrip("\n")]))
    return 0


def _facts(listed: Preset) -> Iterator[str]:
    yield f"algorithm={listed.name}  — {listed.provider}"
    for name, fact in {"paper": listed.paper, "differs": listed.differs, "use": listed.use}.items():
        if fact:
            yield from entry(name, fact, width=columns(), column=COLUMN)


def _keys(chosen: Preset) -> Iterator[str]:
    yield from entry("sets", " ".join(chosen.sets), width=columns(), column=COLUMN)
    yield from entry("file", str(chosen.path), width=columns(), column=COLUMN)
