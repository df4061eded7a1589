"""The command line, `ramet`. Imports nothing heavy: each job is loaded only when it runs."""

from ramet.cli.app import main

__all__ = ["main"]
