"""`ramet tool call NAME [ARGUMENTS] [key=value …]`: its arguments, and what it prints."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ramet.cli.terminal import Parser, complain, say
from ramet.config.keys import JOBS
from ramet.config.sections import GROUPS, without_model
from ramet.errors import ConfigError
from ramet.runs.stopped import INTERNAL, OK, USER
from ramet.types import CallStatus

CODES = {CallStatus.OK: OK, CallStatus.ERROR: USER, CallStatus.INFRA: INTERNAL}
_SECTION = re.compile(r"[+~]*([\w/-]+)(?:\.[\w./-]+)?=")
_CHOOSES = re.compile(r"[+~]*(tools|experiment|tools\.[^.=]+\.use)=")


def run(arguments: Sequence[str]) -> int:
    options = _parser().read(arguments if arguments else ["--help"])
    if options is None:
        return OK
    if options.what not in (None, "call"):
        raise ConfigError(f"tool: no command {options.what!r}; a call is `ramet tool call {' '.join(arguments)}`")
    if not options.words:
        raise ConfigError("tool: give the call, as in `ramet tool call python 'print(1)'`; see `ramet tool --help`")
    name, *rest = options.words
    overrides = [text for text in rest if _is_setting(text)]
    texts = [text for text in rest if text not in overrides]
    if len(texts) > 1:
        raise ConfigError(
            f"tool call: one text of arguments, got {len(texts)}: {', '.join(map(repr, texts))}; put it in quotes"
        )
    if not any(_CHOOSES.match(text) for text in overrides):
        overrides.append(f"tools=[{name}]")
    text = sys.stdin.read() if texts == ["-"] else "".join(texts)
    from ramet.config.compose import compose
    from ramet.runs.hub_inputs import fetched

    composed = compose(without_model(overrides), job="tool", config_dir=options.config_dir)
    resolved = fetched(composed, weights=False, data=False)  # the tokenizer is what cuts results
    record, error = importlib.import_module("ramet.play.tool_call").run(resolved, name, text)
    say(record.text)
    cut = ", cut to tools.*.max_result_tokens" if record.truncated else ""
    complain(f"{record.status}: {record.run_s:.3f} s, attempts: {record.attempts}{cut}")
    return USER if getattr(error, "defect", False) else CODES[record.status]


def _is_setting(text: str) -> bool:
    """`x=1` is code: `x` is not a section."""
    match = _SECTION.match(text)
    return match is not None and match[1] in (*JOBS["tool"], *GROUPS)


def _parser() -> Parser:
    parser = Parser(
        prog="ramet tool",
        add_help=False,
        usage="ramet tool call NAME [ARGUMENTS] [--config-dir DIR] [key=value …]",
        description="One call of a tool, as rollouts make it: its time-out, retries and limits hold.",
        epilog="ARGUMENTS are what a model writes in a call: the text, if the tool has one required text, else a JSON "
        "object; - reads them from the standard input. Keys are as for a run, as in tools=[search] "
        "tools.search.timeout_s=5; where they choose no tool, tools=[NAME]. The result is printed, and how "
        "the call went goes to the standard error. Ends with 1 if the call or the tool's own code was wrong, with 2 if "
        "infrastructure failed.",
    )
    parser.add_argument("what", nargs="?", metavar="call")
    parser.add_argument("words", nargs="*", metavar="NAME [ARGUMENTS]")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    return parser
