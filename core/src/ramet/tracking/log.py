"""Lines of a terminal or a log: visible text without secrets, from any logger and through any formatter.

Messages quote data, weight files and what tools raise. Libraries bring handlers of their own, so the records themselves
are made harmless, not the output of one handler.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from typing import Any, TextIO

from ramet.config.secrets import hide
from ramet.io import repeats
from ramet.io.json_values import visible

_format_warning = warnings.formatwarning


def harmless(text: str) -> str:
    """Return the text without what would steer a terminal, and without secrets."""
    return visible(hide(text))


class HarmlessRecord(logging.LogRecord):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.exc_info and self.exc_info[0] is not None:  # formatters use this text if it is set
            self.exc_text = harmless("".join(traceback.format_exception(*self.exc_info)).rstrip("\n"))

    def getMessage(self) -> str:
        return harmless(super().getMessage())


def make_records_harmless() -> None:
    """Make the records of all loggers and of `warnings` harmless, from this call on."""
    logging.setLogRecordFactory(HarmlessRecord)
    warnings.formatwarning = lambda *arguments, **named: harmless(_format_warning(*arguments, **named))


class ConsoleHandler(logging.StreamHandler[TextIO]):
    """Lines on what stderr is at that moment; of warnings that come again and again only some."""

    def emit(self, record: logging.LogRecord) -> None:
        if repeats.is_shown(record):
            self.stream = sys.stderr
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record) + repeats.suffix(record)


def quiet_libraries() -> None:
    """Leave out what libraries say of themselves although nothing is wrong. Settings of the user's are kept."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if logging.getLogger("mcp").level == logging.NOTSET:
        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # tracebacks of what a server wrote: errors name it
    logging.getLogger("DeepSpeed").addFilter(_is_news)  # imported by transformers wherever it is installed


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Setting accelerator to CPU")


def set_up_logging(level: int) -> None:
    """Lines on stderr: warnings of all loggers, and lines of Ramet's from `level` on."""
    make_records_harmless()
    quiet_libraries()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[ConsoleHandler()])
    logging.getLogger("ramet").setLevel(level)
