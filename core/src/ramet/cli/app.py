"""`ramet COMMAND …`: runs one command, turns errors into one line each and an exit code.

Exit codes: 0 done, 1 the user's mistake or a broken plugin, 2 a failure of infrastructure, 130 interrupted, 143
asked to end (SIGTERM).
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ramet
from ramet.cli.commands import COMMANDS, GROUPS
from ramet.cli.help_text import columns, entry
from ramet.cli.terminal import accept_any_text, complain, print_problems, say, settle_streams
from ramet.config.needs import extras_of
from ramet.config.sections import TRUST
from ramet.errors import ConfigError, PluginError, RametError
from ramet.io.os_errors import os_error_text
from ramet.plugins import extensions
from ramet.plugins.extensions import extension
from ramet.plugins.plugin_code import raised_at
from ramet.runs.stopped import INTERNAL, OK, USER, Stopped, exit_code_of
from ramet.tracking.background import exit_soon
from ramet.tracking.log import set_up_logging

USAGE = "usage: ramet COMMAND [key=value …] [--help] [--debug] [--trust-recipe FILE]"
ABOUT = "Train language models that use tools with reinforcement learning; measure and inspect them."
EXAMPLES = (
    "ramet train algorithm=grpo model.path=Qwen/Qwen3-0.6B data.train=tasks.jsonl 'rewards=[math]'",
    "ramet eval model.path=Qwen/Qwen3-0.6B 'benchmarks=[gsm8k]' 'tools=[python]'",
    "ramet train --help policy.lr",
)
OPTIONS = (
    "--help after a command: its options; --debug: a verbose log and tracebacks; --version",
    "--trust-recipe FILE: this file of hydra_configs/ or --config-dir may name programs to run",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Without `arguments` this is all that the process does."""
    if arguments is None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts are encoded one by one (`models/encoder.py`)
    try:
        code = _main(arguments)
    finally:
        settle_streams()
    if arguments is None:
        exit_soon(code)
    return code


def _main(arguments: Sequence[str] | None) -> int:
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in command_line
    accept_any_text()
    set_up_logging(logging.DEBUG if debug else logging.INFO)
    try:
        arguments, recipes = _without_trusted([argument for argument in command_line if argument != "--debug"])
        if not recipes:
            return _run(arguments)
        from ramet.config.trust import trusting

        with trusting(recipes):
            return _run(arguments)
    except Stopped as stopped:
        complain(f"stopped by {stopped}")
        return stopped.code
    except KeyboardInterrupt as error:
        complain("interrupted")
        return exit_code_of(error)
    except RametError as error:
        if debug:
            _print_trace()
        print_problems(error)
        return exit_code_of(error)
    except SystemExit as error:  # a plugin or a library that takes this process for its own
        _print_trace()
        complain(f"error: internal: something left the program with exit code {error.code}")
        return INTERNAL
    except Exception as error:
        missing = _missing_package(error) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None:
            complain(f"error: {missing}")
            return USER
        if (problem := _system_problem(error)) is not None:
            if debug:
                _print_trace()
            complain(f"error: {problem}")
            return INTERNAL
        _print_trace()  # a defect, not the user's mistake: its repair needs this
        complain(f"error: internal: {type(error).__name__}: {error}")
        return INTERNAL


def _without_trusted(arguments: list[str]) -> tuple[list[str], list[Path]]:
    """Return the other arguments, and the files of `--trust-recipe FILE`, which every command takes."""
    rest, files, words = list[str](), list[Path](), iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name != TRUST:
            rest.append(word)
            continue
        file = value if equals else next(words, "")
        if not file:
            raise ConfigError(f"{TRUST}: name the file, as in {TRUST} hydra_configs/experiment/mine.yaml")
        files.append(Path(file))
    return rest, files


def _system_problem(error: Exception) -> str | None:
    """The message for what a disk, a right or a limit is the cause of; None for a defect.

    One without a path gets the line of Ramet that it comes from.
    """
    if not isinstance(error, OSError) or not str(error) or (isinstance(error, TimeoutError) and error.errno is None):
        return None
    text = os_error_text(error)
    if error.filename is not None:
        return text
    calls = [call for call in traceback.extract_tb(error.__traceback__) if "/ramet/" in call.filename]
    return f"{text} (in {calls[-1].filename.rpartition('/ramet/')[2]}:{calls[-1].lineno})" if calls else text


def _missing_package(error: ModuleNotFoundError) -> str | None:
    """The message for a package that an extra brings; None for any other module, which is a defect."""
    module = (error.name or "").partition(".")[0]
    extras = {brought.replace("-", "_"): extra for extra, all_of in extras_of("ramet").items() for brought in all_of}
    extra = extras.get(module)  # modules of all extras are named like their distributions
    if extra is None:
        return None
    return f"this needs the package {module!r}, which is not installed; install it with: pip install 'ramet[{extra}]'"


def _print_trace() -> None:
    complain(traceback.format_exc().rstrip("\n"))


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        say(_overview())
        return OK
    if name == "--version":
        say(f"ramet {ramet.__version__}")
        return OK
    if name in COMMANDS:
        return COMMANDS[name].run(arguments[1:])
    entry = extension(extensions.COMMANDS, name, COMMANDS)
    command = entry.load()
    try:
        code: int | None = command(arguments[1:])
    except (RametError, OSError):
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and _missing_package(error) is not None:
            raise
        raise PluginError(f"{entry}: {type(error).__name__}: {error}{raised_at(error)}") from error
    except SystemExit as system_exit:  # as argparse does, after its help or an error that it has printed
        if not isinstance(system_exit.code, int | None):
            raise
        code = system_exit.code
    return code or OK


def _added() -> dict[str, str]:
    """Commands of plugins with their summaries. One that cannot be loaded says why."""
    summaries = {}
    for added in extensions.extensions(extensions.COMMANDS):
        if added.name in COMMANDS:
            summaries[added.name] = (
                f"{COMMANDS[added.name].summary} (not the one of {added.distribution}: the name is taken)"
            )
            continue
        try:
            summaries[added.name] = f"{_summary(added.load())} ({added.distribution})"
        except PluginError as error:
            summaries[added.name] = f"BROKEN {error}"
    return summaries


def _summary(command: Callable[..., Any]) -> str:
    lines = (command.__doc__ or "").strip().splitlines()
    return lines[0] if lines else "a command without a docstring"


def _overview() -> str:
    width, added = columns(), _added()
    groups = {group: {name: COMMANDS[name].summary for name in names} for group, names in GROUPS.items()}
    if added:
        groups["of plugins"] = added
    column = max(len(name) for summaries in groups.values() for name in summaries) + 4
    lines = [USAGE, ABOUT, ""]
    for group, summaries in groups.items():
        lines.append(group)
        for name, summary in summaries.items():
            lines += entry(name, summary, width=width, column=column)
    return "\n".join([*lines, "", "examples", *(f"  {line}" for line in EXAMPLES), "", *OPTIONS])
