"""The arguments of `ramet cache` and `ramet corpus`: a mistake is a line of `ramet`, not a usage text."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from ramet import ConfigError


class Arguments(argparse.ArgumentParser):
    """A parser that raises `ConfigError` instead of leaving the process; so do the parsers of its commands."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read arguments; an unknown one names the command's own help, which has the options.

        A command's parser is the default of `parser`.
        """
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            getattr(options, "parser", self).error(f"unrecognized arguments: {' '.join(rest)}")
        return options

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")
