"""`ramet tool call NAME [ARGUMENTS] [key=value …]` and `ramet tool serve NAME…`: arguments, and what is printed."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.cli.terminal import Parser, complain, say
from ramet.config.keys import JOBS
from ramet.config.sections import GROUPS, without_model
from ramet.errors import ConfigError
from ramet.runs.stopped import INTERNAL, OK, USER
from ramet.types import CallStatus, Task

if TYPE_CHECKING:
    from ramet.config.resolved import Resolved

WHAT = ("call", "serve")
CODES = {CallStatus.OK: OK, CallStatus.ERROR: USER, CallStatus.INFRA: INTERNAL}
_SECTION = re.compile(r"[+~]*([\w/-]+)(?:\.[\w./-]+)?=")
_CHOOSES = re.compile(r"[+~]*(tools|experiment|tools\.[^.=]+\.use)=")


def run(arguments: Sequence[str]) -> int:
    options = _parser().read(arguments if arguments else ["--help"])
    if options is None:
        return OK
    if options.what not in (None, *WHAT):
        raise ConfigError(f"tool: no command {options.what!r}; a call is `ramet tool call {' '.join(arguments)}`")
    if options.what == "serve":
        return _serve(options)
    return _call(options)


def _call(options: argparse.Namespace) -> int:
    """Call a tool once and print its result."""
    if options.http is not None:
        raise ConfigError("tool call: --http is an option of `ramet tool serve`")
    if not options.words:
        raise ConfigError("tool: give the call, as in `ramet tool call python 'print(1)'`; see `ramet tool --help`")
    name, *rest = options.words
    overrides = [text for text in rest if _is_setting(text)]
    texts = [text for text in rest if text not in overrides]
    if len(texts) > 1:
        raise ConfigError(
            f"tool call: one text of arguments, got {len(texts)}: {', '.join(map(repr, texts))}; put it in quotes"
        )
    text = sys.stdin.read() if texts == ["-"] else "".join(texts)
    resolved = _resolved(overrides, [name], options)
    record, error = importlib.import_module("ramet.play.tool_call").run(resolved, name, text, _task(resolved, options))
    say(record.text)
    cut = ", cut to tools.*.max_result_tokens" if record.truncated else ""
    complain(f"{record.status}: {record.run_s:.3f} s, attempts: {record.attempts}{cut}")
    return USER if getattr(error, "defect", False) else CODES[record.status]


def _serve(options: argparse.Namespace) -> int:
    """Serve tools until the client ends, or a signal comes. No plugin is loaded before the protocol has its streams."""
    overrides = [text for text in options.words if _is_setting(text)]
    names = [text for text in options.words if text not in overrides]
    if not names and not any(_CHOOSES.match(text) for text in overrides):
        raise ConfigError("tool serve: name the tools, as in `ramet tool serve python search`; see `ramet tool --help`")
    from ramet.rollout.tools.mcp import NOT_INSTALLED

    if find_spec("mcp") is None:
        raise ConfigError(f"tool serve: {NOT_INSTALLED}")
    server = importlib.import_module("ramet.play.tool_server")
    if options.http is not None:
        address = server.Address.read(options.http)
        resolved = _resolved(overrides, names, options)
        server.serve_http(resolved, names, _task(resolved, options), address, say)
        return OK
    with server.standard_streams() as streams:
        resolved = _resolved(overrides, names, options)
        server.serve(resolved, names, _task(resolved, options), streams)
    return OK


def _resolved(overrides: Sequence[str], names: Sequence[str], options: argparse.Namespace) -> Resolved:
    """The configuration with the tools that are named, where the keys choose none."""
    from ramet.config.compose import compose
    from ramet.runs.hub_inputs import fetched

    if not any(_CHOOSES.match(text) for text in overrides):
        overrides = [*overrides, f"tools=[{','.join(names)}]"]
    composed = compose(without_model(overrides), job="tool", config_dir=options.config_dir)
    return fetched(composed, weights=False, data=False)  # the tokenizer is what cuts results


def _task(resolved: Resolved, options: argparse.Namespace) -> Task:
    sessions = importlib.import_module("ramet.play.tool_sessions")
    task: Task = sessions.NO_TASK if options.task is None else sessions.read_task(options.task, resolved.config)
    return task


def _is_setting(text: str) -> bool:
    """`x=1` is code: `x` is not a section."""
    match = _SECTION.match(text)
    return match is not None and match[1] in (*JOBS["tool"], *GROUPS)


def _parser() -> Parser:
    parser = Parser(
        prog="ramet tool",
        add_help=False,
        usage="ramet tool call NAME [ARGUMENTS] [--task FILE] [--config-dir DIR] [key=value …]\n"
        "       ramet tool serve NAME… [--http HOST:PORT] [--task FILE] [--config-dir DIR] [key=value …]",
        description="One call of a tool, or tools as an MCP server for an agent, as rollouts call them: time-outs, "
        "retries and limits hold.",
        epilog="call: ARGUMENTS are what a model writes in a call: the text, if the tool has one required text, else a "
        "JSON object; - reads them from the standard input. The result is printed, and how the call went goes to the "
        "standard error. Ends with 1 if the call or the tool's own code was wrong, with 2 if infrastructure failed. "
        "serve: the protocol is spoken over standard input and output, or at http://HOST:PORT/mcp for clients that "
        "have the key that is printed; each client has a separate state of a tool with a state. Keys are as for a run, "
        "as in tools=[search] tools.search.timeout_s=5; where they choose no tool, tools=[NAME].",
    )
    parser.add_argument("what", nargs="?", metavar="|".join(WHAT))
    parser.add_argument("words", nargs="*", metavar="NAME [ARGUMENTS]")
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="serve over HTTP; without HOST at the loopback, port 0: any"
    )
    parser.add_argument(
        "--task", type=Path, metavar="FILE", help="the calls' task: RAMET_TASK, or JSON with columns of data"
    )
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    return parser
