"""What `ramet sft` shows while it trains: the live line's parts, and its console in a pseudo-terminal and a pipe."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import threading
import tty
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
import torch
from transformers import AutoModelForCausalLM

from ramet.config.schema import Config, SftConfig
from ramet.policy.batching.packing import empty_micro_batch
from ramet.runs.stopped import StopListener
from ramet.sft.batches import StepBatch
from ramet.sft.encode import Example
from ramet.sft.progress import SftProgress
from ramet.sft.trainer import train
from ramet.sft.world import ALONE
from ramet.tracking import live
from ramet.tracking.console import ConsoleTracker
from ramet.tracking.live import line_of

STEPS = 6
FRAME = re.compile(r"\r([^\r\n]+)\x1b\[K")
COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Training:
    """Trainer's calls and the clock, as a test makes them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, recorded: Any) -> None:
        self.now = 100.0
        monkeypatch.setattr("ramet.sft.progress.time", SimpleNamespace(monotonic=lambda: self.now))
        self.signals = StopListener()
        self.progress = SftProgress(recorded, SftConfig(), self.signals, ALONE)
        self.state: Any = SimpleNamespace(global_step=4, max_steps=10, best_global_step=None)
        self.control: Any = SimpleNamespace(should_log=False)

    def begin(self) -> None:
        self.progress.on_train_begin(SimpleNamespace(logging_steps=1, save_steps=1), self.state, self.control)

    def end_step(self, seconds: float) -> None:
        self.now += seconds
        self.state.global_step += 1
        self.progress.on_step_end(None, self.state, self.control)

    @property
    def line(self) -> str:
        return line_of(self.progress.parts(), 200)


def test_the_time_left_is_that_of_the_steps_of_this_process(monkeypatch: pytest.MonkeyPatch, recorded: Any) -> None:
    training = Training(monkeypatch, recorded)
    assert training.line == ""
    training.begin()
    assert training.line == "step 5/10"
    training.end_step(60.0)
    assert training.line == "step 6/10  left 5m00"
    training.now += 20.0
    assert training.line == "step 6/10  left 4m40"
    training.signals.signal = 2
    assert training.line == "step 6/10  stopping after this step"


def test_batches_of_a_step_are_counted_and_the_last_step_is_not_passed(
    monkeypatch: pytest.MonkeyPatch, recorded: Any
) -> None:
    training = Training(monkeypatch, recorded)
    training.begin()
    training.progress.begin_step(StepBatch(micro_batches=[empty_micro_batch()] * 3, n_trained=1))
    assert training.line == "step 5/10  batch 1/3"
    training.progress.on_substep_end(None, training.state, training.control)
    assert training.line == "step 5/10  batch 2/3"
    training.state.global_step = 9
    training.end_step(1.0)
    assert training.line == "step 10/10  left 0.0s"


def console(model: Path, run: Path) -> None:
    """Train with the console tracker on what stdout is now."""
    config = Config()
    config.sft.sequences_per_step = 2
    config.sft.trainer = {"max_steps": STEPS, "logging_steps": 2, "save_steps": 1000}
    examples = [Example(token_ids=array("i", [97 + i, 98]), trained=array("b", [0, 1])) for i in range(12)]
    torch.set_num_threads(1)
    train(AutoModelForCausalLM.from_pretrained(model), examples, config, run, tracker=ConsoleTracker(STEPS))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """A stream onto a pseudo-terminal, and what closes it and returns all that arrived there."""
    master, slave = pty.openpty()
    tty.setraw(slave)  # newlines stay newlines
    sent = bytearray()

    def read() -> None:
        while True:
            try:
                sent.extend(os.read(master, 65536))
            except OSError:  # nobody has it open any more
                return

    for name, value in {"TERM": "xterm-256color", "COLUMNS": "100", "CI": "", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(live, "PERIOD_S", 0.002)  # a step is that short here
    reader = threading.Thread(target=read)
    reader.start()
    stream = os.fdopen(slave, "w", buffering=1)

    def ended() -> str:
        stream.close()
        reader.join(10)
        return sent.decode()

    yield stream, ended
    ended()
    os.close(master)


def test_a_terminal_has_the_table_and_a_live_line_that_leaves_nothing(
    tiny_model: Path,
    tmp_path: Path,
    terminal: tuple[TextIO, Callable[[], str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, ended = terminal
    monkeypatch.setattr(sys, "stdout", stream)
    console(tiny_model, tmp_path)
    text = ended()
    frames = [COLOUR.sub("", frame) for frame in FRAME.findall(text)]
    assert frames and all(re.fullmatch(rf"step [1-{STEPS}]/{STEPS}(  left \S+)?", frame) for frame in frames)
    shown = [line.rpartition("\r\x1b[K")[2] for line in COLOUR.sub("", text).split("\n")]
    header, *rows = [line for line in shown if line and "\r" not in line]
    assert header.split()[:2] == ["step", "loss"] and header.split()[-1] == "left"
    assert [row.split()[0] for row in rows] == [f"{step}/{STEPS}" for step in (2, 4, 6)]


def test_a_pipe_has_plain_lines_alone(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    console(tiny_model, tmp_path)
    lines = out.getvalue().splitlines()
    assert [line.partition("  loss ")[0] for line in lines] == [f"step {step}/{STEPS}" for step in (2, 4, 6)]
    assert not {"\r", "\x1b"} & set(out.getvalue())
