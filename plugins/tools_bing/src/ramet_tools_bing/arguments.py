"""How `ramet cache` and `ramet corpus` read their arguments: a mistake is a line of `ramet`, not a usage text."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ramet import ConfigError


class Arguments(argparse.ArgumentParser):
    """Raises `ConfigError` instead of leaving the process; so do the parsers of its commands."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")
