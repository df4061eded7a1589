"""The page of commands: what each prints for `--help`, and the exit codes."""

from __future__ import annotations

import contextlib
import io

from ramet.cli import main
from ramet.cli.commands import COMMANDS
from ramet.plugins.extensions import COMMANDS as ADDED
from ramet.plugins.extensions import extensions
from ramet.runs.stopped import INTERNAL, OK, USER

EXIT_CODES = {
    OK: "done",
    USER: "a mistake of the user (a key, a value, a file) or of a plugin; nothing was started, or the run was stopped",
    INTERNAL: "a failure of Ramet or around it: a service, a machine, a disk. The same command resumes a run",
    130: "interrupted with Ctrl-C. A run has saved its state, and the same command resumes it",
    143: "ended by SIGTERM, as a scheduler sends it. A run has saved its state, and the same command resumes it",
}


def commands_page() -> str:
    """Return the page as Markdown."""
    parts = [
        "# Commands\n\nEvery command with its `--help`. `--debug` adds a traceback to every error.\n",
        "## Exit codes\n\n| code | what it means |\n|---|---|",
        *(f"| {code} | {text} |" for code, text in EXIT_CODES.items()),
        "\nA command that checks something ends with 1 if it finds a problem: `benchmarks validate` and `overlap`,",
        "`check-logprobs`, `checkpoints`, `data inspect`, `doctor`. `judge` ends with 2 if verdicts failed, `play` and",
        "`tool call` if infrastructure did. `judge` and evaluations keep what is done, and the same command continues.",
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
    if code != OK:
        raise RuntimeError(f"ramet {' '.join(command)} --help ended with exit code {code}")
    return printed.getvalue().rstrip()


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
