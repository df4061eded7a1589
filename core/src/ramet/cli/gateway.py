"""`ramet gateway [key=value …]`: its arguments."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramet.cli.terminal import Parser, say
from ramet.config.secrets import from_environment
from ramet.errors import ConfigError, ConfigErrors

PREFIX = "gateway."
LOWEST = {"port": 0, "max_tokens": 1}
HIGHEST = {"port": 65535}


def run(arguments: Sequence[str]) -> int:
    options = _parser().read(arguments)
    if options is None:
        return 0
    own = [text for text in options.overrides if text.startswith(PREFIX)]
    from ramet.config.compose import compose
    from ramet.runs.hub_inputs import fetched

    job = importlib.import_module("ramet.play.gateway")
    chosen = job.GatewayOptions(**_values(own, {f.name: f.type for f in dataclasses.fields(job.GatewayOptions)}))
    others = [text for text in options.overrides if text not in own]
    job.run(fetched(compose(others, job="play", config_dir=options.config_dir)), chosen, say)
    return 0


def _values(overrides: Sequence[str], types: dict[str, Any]) -> dict[str, Any]:
    """Read the command's own keys. Raises `ConfigErrors`."""
    values: dict[str, Any] = {}
    problems = []
    for text in overrides:
        key, _, value = text.partition("=")
        name = key.removeprefix(PREFIX)
        if name not in types:
            problems.append(f"{key}: no such key; allowed: {', '.join(PREFIX + known for known in types)}")
        elif name == "admin_key":
            try:
                values[name] = from_environment(key, value)
            except ConfigError as error:
                problems.append(str(error))
        elif types[name] != "int":
            values[name] = Path(value) if types[name] == "Path" else value
        elif not value.isdecimal() or not LOWEST[name] <= int(value) <= HIGHEST.get(name, int(value)):
            upto = f" to {HIGHEST[name]}" if name in HIGHEST else " or more"
            problems.append(f"{text}: must be an integer, {LOWEST[name]}{upto}")
        else:
            values[name] = int(value)
    if problems:
        raise ConfigErrors(problems)
    return values


def _parser() -> Parser:
    parser = Parser(
        prog="ramet gateway",
        add_help=False,
        usage="ramet gateway model.path=MODEL [gateway.port=8000] [key=value …]",
        description="Serve a model to an agent, as a training run would serve it, and record every token. Prints the "
        "address and the keys; ends with Ctrl-C and then writes the record. Nothing is trained.",
        epilog="gateway.host (default: 127.0.0.1), gateway.port (default: any free one), gateway.record (default: "
        "gateway.jsonl.gz, which must not exist), gateway.max_tokens (of all requests of a session), "
        "gateway.admin_key='${oc.env:VARIABLE}' (of the control plane; default: a random one). Other keys are as for "
        "`ramet play`: model, engine, rollout, run.",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="the model, the engine, the address")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    return parser
