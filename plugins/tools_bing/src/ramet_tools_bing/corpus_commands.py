"""`ramet corpus`: build and try an offline corpus for the tool search."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def corpus(arguments: Sequence[str]) -> int:
    """build and try an offline corpus for the tool search"""
    parser = argparse.ArgumentParser(
        prog="ramet corpus", description="build and try an offline corpus for the tool search"
    )
    parser.parse_args(arguments)
    return 0
