"""`ramet new` and `ramet tiny-model`: a package and a model to begin with."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from ramet.cli.commands import COMMANDS
from ramet.cli.terminal import Parser, say
from ramet.errors import ConfigError
from ramet.scaffold import KINDS, Package, write_package

ARCHITECTURES = ("qwen2", "qwen3", "llama")  # of `ramet tiny-model`


def new(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet new",
        add_help=False,
        usage="ramet new KIND NAME [--dir DIR]",
        description="A plugin package of your own, with tests that pass.",
    )
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"{', '.join(KINDS)} (what each is: docs/plugins.md)")
    parser.add_argument("name", nargs="?", metavar="NAME", help="as in the configuration: count_words, exact_match")
    parser.add_argument("--dir", type=Path, help="the folder to make; default: ramet-NAME in the working directory")
    options = parser.read(arguments)
    if options is None:
        return 0
    if options.kind is None or options.name is None:
        raise ConfigError("new: give a kind and a name, as in `ramet new tool count_words`; see `ramet new --help`")
    if options.kind == "command" and options.name in COMMANDS:
        raise ConfigError(f"name: {options.name!r} is a command of Ramet itself; choose another")
    say(_made(write_package(options.kind, options.name, options.dir)))
    return 0


def _made(package: Package) -> str:
    files = "\n".join(f"  {file}" for file in package.files)
    return f"""made {package.folder}/ ({package.distribution}: the {package.kind.noun} {package.name!r}) with
{files}

next:
  cd {package.folder}
  python -m pip install -e ".[test]"    # add --find-links FOLDER where Ramet's wheels are in a folder
  python -m pytest        # behaviour and contract tests
  ramet {package.kind.use.format(name=package.name)} …
README.md says how to publish it."""


def tiny_model(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet tiny-model",
        add_help=False,
        usage="ramet tiny-model DIR [--arch ARCH] [--seed N]",
        description="A random model of 1.1 million parameters with a byte-level tokenizer, to try things with.",
        epilog="It is the quickstart's: one token per byte, and one per tag of think, python, search, result, answer.",
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="the folder to make")
    parser.add_argument("--arch", default="qwen2", choices=ARCHITECTURES, help="default: qwen2")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights (default: 1)")
    options = parser.read(arguments)
    if options is None:
        return 0
    if options.folder is None:
        raise ConfigError("tiny-model: give the folder to make, as in `ramet tiny-model models/tiny`")
    if options.folder.exists() and (not options.folder.is_dir() or any(options.folder.iterdir())):
        raise ConfigError(f"tiny-model: {str(options.folder)!r} is there already; nothing was written")
    tiny = importlib.import_module("ramet.models.tiny")
    say(f"made {tiny.make_tiny_model(options.folder, architecture=options.arch, seed=options.seed)}")
    return 0
