"""A command that takes a configuration: `ramet train|sft|eval [key=value …]`."""

from __future__ import annotations

import argparse
import importlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.cli.terminal import Parser, say
from ramet.errors import ConfigError, ConfigErrors, MissingHere, raise_all

if TYPE_CHECKING:
    from ramet.config.resolved import Resolved

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobCommand:
    """`module` holds `run(resolved)`; `plan(resolved, on)` is in the module `dry_run` of its package. A
    training's plan takes `response_tokens` and `tool_s` too.
    """

    name: str
    module: str
    summary: str

    def run(self, arguments: Sequence[str]) -> int:
        if self.name == "eval" and [*arguments[:1]] == ["import"]:
            return int(importlib.import_module("ramet.cli.eval_import").run(arguments[1:]))
        parser = self._parser()
        options, unknown = parser.parse_known_intermixed_args(arguments)
        if unknown:
            from ramet.cli.foreign_flags import flag_problems

            raise_all(flag_problems(self.name, unknown, [*parser._option_string_actions]))
        if options.help:
            from ramet.cli.job_help import job_help

            words = [word for word in options.overrides if "=" not in word]
            overrides = [text for text in options.overrides if "=" in text]
            say(job_help(self.name, self.summary, words, overrides, options.config_dir))
            return 0
        if options.on is not None and (not options.dry_run or options.multirun):
            raise ConfigError("--on: a machine is named for a dry run of one configuration; add --dry-run, without -m")
        if options.show is not None and (self.name != "sft" or options.dry_run or options.multirun or options.cfg):
            raise ConfigError("--show: sequences are shown only by `ramet sft`, without --dry-run, --cfg and -m")
        expected = {"--response-tokens": options.response_tokens, "--tool-s": options.tool_s}
        given = {option: value for option, value in expected.items() if value is not None}
        if given and (self.name != "train" or not options.dry_run or options.multirun):
            raise ConfigError(
                f"{', '.join(expected)}: say what `ramet train --dry-run` counts on; add --dry-run, without -m"
            )
        raise_all(
            f"{option} {value}: must be a number above 0" for option, value in given.items() if not 0 < value < math.inf
        )
        if options.replay is not None:
            return self._replay(options)
        if options.multirun:
            return self._sweep(options)
        from ramet import api

        resolved = api.compose(options.overrides, job=self.name, config_dir=options.config_dir)
        if options.cfg:
            say(resolved.text.rstrip("\n"))
            return 0
        if options.show is not None:
            importlib.import_module("ramet.sft.show").show(api.fetched(resolved, weights=False), options.show)
            return 0
        if options.dry_run:
            say(str(self._plan(resolved, options)))
            return 0
        api.run(resolved)
        return 0

    def _plan(self, resolved: Resolved, options: argparse.Namespace) -> object:
        from ramet import api

        on = options.on
        resolved = api.fetched(resolved, weights=on is None)
        api.check_early(resolved)
        named = {"response_tokens": options.response_tokens, "tool_s": options.tool_s}
        expected = {name: value for name, value in named.items() if value is not None}
        try:
            return importlib.import_module(self.plan_module).plan(resolved, on, **expected)
        except ConfigErrors as error:
            if on is None and any(isinstance(problem, MissingHere) for problem in error.problems):
                logger.warning("this plans for this machine; for GPUs of another one add --on, as in --on 8x80GiB")
            raise

    def _replay(self, options: argparse.Namespace) -> int:
        if self.name == "sft" or options.dry_run or options.multirun or options.cfg:
            raise ConfigError(
                "--replay: `ramet train --replay RUN` makes the updates of a run again, `ramet eval --replay RESULT` "
                "scores a finished evaluation again; both without --dry-run, --cfg and -m"
            )
        if self.name == "train":
            replay = importlib.import_module("ramet.train.replay")
            replay.run(options.replay, options.overrides, config_dir=options.config_dir)
            return 0
        importlib.import_module("ramet.evaluate.replay").run(options.replay, options.overrides)
        return 0

    @property
    def plan_module(self) -> str:
        return f"{self.module.rpartition('.')[0]}.dry_run"

    def _sweep(self, options: argparse.Namespace) -> int:
        if options.cfg:
            raise ConfigError("--cfg prints one configuration, and -m means many; leave one of them out")
        from ramet.cli.sweep import run_sweep

        module = self.plan_module if options.dry_run else self.module
        run_sweep(self.name, module, options.overrides, config_dir=options.config_dir, dry_run=options.dry_run)
        return 0

    def _parser(self) -> Parser:
        parser = Parser(prog=f"ramet {self.name}", add_help=False, allow_abbrev=False)
        parser.add_argument("overrides", nargs="*")
        parser.add_argument("-h", "--help", action="store_true")
        parser.add_argument("-m", "--multirun", action="store_true")
        parser.add_argument("--dry-run", action="store_true")
        parser.add_argument("--on", metavar="[NODESx]DEVICESxMEMORY|GPU")
        parser.add_argument("--response-tokens", type=int, metavar="N")
        parser.add_argument("--tool-s", type=float, metavar="S")
        parser.add_argument("--show", type=int, metavar="N")
        parser.add_argument("--replay", type=Path, metavar="RESULT")
        parser.add_argument("--cfg", choices=["job"])
        parser.add_argument("--config-dir", type=Path)
        return parser
