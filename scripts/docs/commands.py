"""The page of commands: what each prints for `--help`, as the site shows it."""

from __future__ import annotations

import contextlib
import io

from ramet.cli import main
from ramet.cli.commands import COMMANDS
from ramet.plugins.extensions import COMMANDS as ADDED
from ramet.plugins.extensions import extensions


def commands_page() -> str:
    """Return the page as Markdown."""
    parts = [
        "# Commands\n\nEvery command with its `--help`. `--debug` adds a traceback to every error.",
        "[Exit codes](../running.md#exit-codes) are the same for all; a help names those of its own.",
        f"\n## ramet\n\n```text\n{_printed([])}\n```",
    ]
    for name, command in COMMANDS.items():
        parts.append(f"\n## ramet {name}\n\n{_capital(command.summary)}.\n\n```text\n{_printed([name])}\n```")
    for entry in extensions(ADDED):
        text = _printed([entry.name])
        parts.append(f"\n## ramet {entry.name}\n\nFrom the package {entry.distribution}.\n\n```text\n{text}\n```")
    return "\n".join(parts) + "\n"


def _printed(command: list[str]) -> str:
    """Return what `ramet COMMAND --help` prints. Raises `RuntimeError` if it fails."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main([*command, "--help"])
    if code:
        raise RuntimeError(f"ramet {' '.join(command)} --help ended with exit code {code}")
    return printed.getvalue().rstrip()


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
