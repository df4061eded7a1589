"""`ramet cache`: look at the cache of web searches, and exchange its entries."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def cache(arguments: Sequence[str]) -> int:
    """look at the cache of web searches, and exchange its entries"""
    parser = argparse.ArgumentParser(
        prog="ramet cache", description="look at the cache of web searches, and exchange its entries"
    )
    parser.parse_args(arguments)
    return 0
