"""In a real pseudo-terminal: the test writes as a job does, and reads what the terminal got."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import sys
import tty
from collections.abc import Iterator
from typing import TextIO

import pytest

from ramet.io.terminal_line import ERASE, TerminalLine, erase_at_once, is_live


class Terminal:
    """stdout and stderr of this process, while a test runs."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        tty.setraw(slave)  # newlines stay newlines
        self.out: TextIO = os.fdopen(slave, "w", buffering=1)
        self.err: TextIO = os.fdopen(os.dup(slave), "w", buffering=1)

    def attach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the test itself: pytest sets its own streams after every fixture."""
        monkeypatch.setattr(sys, "stdout", self.out)
        monkeypatch.setattr(sys, "stderr", self.err)

    def sent(self) -> str:
        """Since the last call."""
        found = b""
        while select.select([self.master], [], [], 0.05)[0]:
            found += os.read(self.master, 65536)
        return found.decode()

    def close(self) -> None:
        for close in (self.out.close, self.err.close, lambda: os.close(self.master)):
            with contextlib.suppress(OSError):  # of a terminal that hung up
                close()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    yield made
    made.close()


def test_what_is_printed_erases_the_line_first(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.attach(monkeypatch)
    line = TerminalLine()
    with line.held():
        line.draw("rollouts 1/8")
        assert terminal.sent() == "\rrollouts 1/8\x1b[K"
        print("a row")
        assert terminal.sent() == f"{ERASE}a row\n"
        line.draw("rollouts 2/8")
        print("a warning", file=sys.stderr)
        assert terminal.sent() == f"\rrollouts 2/8\x1b[K{ERASE}a warning\n"
        line.draw("rollouts 3/8")
    assert terminal.sent() == f"\rrollouts 3/8\x1b[K{ERASE}"
    assert (sys.stdout, sys.stderr) == (terminal.out, terminal.err)


def test_nothing_is_drawn_after_a_part_of_a_line_or_when_it_is_over(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.attach(monkeypatch)
    line = TerminalLine()
    with line.held():
        print("50% ", end="", flush=True)
        line.draw("rollouts 1/8")
        print("100%")
        line.draw("rollouts 2/8")
    line.draw("rollouts 3/8")
    print("end")
    assert terminal.sent() == f"50% 100%\n\rrollouts 2/8\x1b[K{ERASE}end\n"


def test_a_signal_handler_erases_without_the_stream(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.attach(monkeypatch)
    line = TerminalLine()
    with line.held():
        erase_at_once()
        line.draw("x")
        erase_at_once()
        assert terminal.sent() == f"\rx\x1b[K{ERASE}"


def test_stderr_that_is_a_file_stays_as_it_is(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    terminal.attach(monkeypatch)
    with (tmp_path / "err").open("w") as err:
        monkeypatch.setattr(sys, "stderr", err)
        line = TerminalLine()
        with line.held():
            line.draw("rollouts 1/8")
            assert sys.stderr is err
            print("a warning", file=sys.stderr)
    assert (tmp_path / "err").read_text() == "a warning\n"
    assert terminal.sent() == f"\rrollouts 1/8\x1b[K{ERASE}"


def test_a_terminal_that_hung_up_is_left_alone(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.attach(monkeypatch)
    line = TerminalLine()
    with line.held():
        line.draw("rollouts 1/8")
        terminal.sent()
        os.close(terminal.master)
        line.draw("rollouts 2/8")
        line.draw("rollouts 3/8")
    assert sys.stdout is terminal.out


@pytest.mark.parametrize(("variable", "value"), [("TERM", "dumb"), ("TERM", None), ("CI", "true")])
def test_terminals_that_cannot_erase_and_records_of_ci_get_no_line(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, variable: str, value: str | None
) -> None:
    terminal.attach(monkeypatch)
    assert is_live(sys.stdout)
    if value is None:
        monkeypatch.delenv(variable)
    else:
        monkeypatch.setenv(variable, value)
    assert not is_live(sys.stdout)
