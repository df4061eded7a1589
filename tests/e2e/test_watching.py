"""What somebody sees of a run: the live line in a real pseudo-terminal, and not a byte of it in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

ROLLOUTS = re.compile(r"step (\d)/2(?:  left \S+)?  rollouts (\d+)/(\d+)")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
SLOW_S = "1.5"  # the longest call of a tool: steps of a second or more, so that some frames are drawn
TERMINAL = {"TERM": "xterm-256color", "CI": "", "NO_COLOR": "", "COLUMNS": "", "E2E_LATENCY_S": SLOW_S}


@dataclass
class Terminal:
    """`path` is what a command is given as stdout and stderr; `sent` is all that it wrote there."""

    path: str
    sent: bytearray = field(default_factory=bytearray)

    @property
    def text(self) -> str:
        return self.sent.decode()

    @property
    def frames(self) -> list[str]:
        """The live line as it was drawn, without colours."""
        return [COLOUR.sub("", one) for one in re.findall(r"\r([^\r\n]+)\x1b\[K", self.text)]

    @property
    def screen(self) -> list[str]:
        """The lines that are there in the end: carriage returns and erasures are carried out."""
        lines = []
        for line in COLOUR.sub("", self.text).split("\n"):
            shown = ""
            for piece in re.split(r"(\r|\x1b\[K)", line.removesuffix("\r")):
                shown = "" if piece in ("\r", "\x1b[K") else shown + piece
            lines.append(shown)
        return lines


@contextmanager
def terminal(columns: int) -> Iterator[Terminal]:
    """Everything that was written is there when the block is left."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    made = Terminal(os.ttyname(slave))

    def read() -> None:
        while True:
            try:
                made.sent.extend(os.read(master, 65536))
            except OSError:  # nobody has it open any more
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield made
    finally:
        os.close(slave)
        reader.join(10)
        os.close(master)


def train(workspace, tmp_path, *more: str) -> list[str]:
    return workspace.train(
        f"run.root={tmp_path}", "run.name=run", "train.steps=2", "train.tasks_per_step=2", "train.eval_every=0",
        "train.eval_first=false", "data.valid=[]", "train.save_every=100", *more,
    )  # fmt: skip


@pytest.mark.parametrize(("columns", "no_colour"), [(100, ""), (40, "1")])
def test_a_terminal_shows_a_live_line_and_keeps_whole_lines(ramet, workspace, tmp_path, columns: int, no_colour: str):
    with terminal(columns) as shown:
        environment = {**TERMINAL, "NO_COLOR": no_colour}
        arguments = train(workspace, tmp_path, "trackers=[console,jsonl,samples]", "policy.lr=0")
        ended = ramet.start(*arguments, cwd=tmp_path, screen=shown.path, **environment).wait()
    assert ended.code == 0
    counts = [tuple(map(int, found.groups())) for frame in shown.frames if (found := ROLLOUTS.match(frame))]
    assert {step for step, _, _ in counts} == {1, 2} and {total for _, _, total in counts} == {16}
    assert counts == sorted(counts)  # rollouts that are done stay done
    assert all(len(frame) < columns for frame in shown.frames)
    lines = [line for line in shown.screen if line]
    table = [i for i, line in enumerate(lines) if re.match(r"[12]/2 ", line)]
    assert [lines[table[0] - 1].split()[:2], len(table)] == [["step", "reward"], 2]
    assert sum(line.startswith("step 1, rollout 1 of 2 (best): reward ") for line in lines) == 1
    assert (
        f"model in {tmp_path}/run/model; report: ramet report {tmp_path}/run" in lines[-2:]
    )  # the doctor has the last word
    assert not [line for line in lines if "rollouts " in line and " x 8 rollouts" not in line]
    assert ("\x1b[36m" in shown.text) == (not no_colour)


def test_ctrl_c_leaves_whole_lines_and_no_live_line(ramet, workspace, tmp_path):
    with terminal(100) as shown:
        running = ramet.start(*train(workspace, tmp_path), cwd=tmp_path, screen=shown.path, **TERMINAL)
        until = time.monotonic() + 60
        while not any(frame.startswith("step 2/2") for frame in shown.frames) and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGINT)
        ended = running.wait()
    assert ended.code == 130
    lines = [line for line in shown.screen if line]
    assert lines[-4:-2] == [
        "SIGINT: saving and stopping, within 60 s if the step allows; a second signal ends at once",
        "stopped after step 1 of 2",
    ]
    assert (
        re.match(r"resume with: PYTHONPATH=\S+ RAMET_PLUGINS=\S+ ramet train ", lines[-2])
        and lines[-1] == "stopped by SIGINT"
    )
    assert (tmp_path / "run/run.log").read_text().splitlines()[-1].endswith(" WARNING stopped by SIGINT")


def test_a_pipe_gets_lines_alone_and_the_log_of_the_run_has_them_with_times(ramet, workspace, tmp_path):
    ended = ramet(*train(workspace, tmp_path), cwd=tmp_path, **TERMINAL)
    assert ended.code == 0
    for text in (ended.out, ended.err):
        assert "\r" not in text and "\x1b" not in text and text.endswith("\n")
    assert [line.split("  ")[0] for line in ended.out.splitlines()] == ["step 1/2", "step 2/2"]
    assert "rollouts " not in ended.out and "Loading" not in ended.err and "accelerator" not in ended.err
    log = (tmp_path / "run/run.log").read_text().splitlines()
    logged = [line[len("2026-11-22 10:00:00 WARNING ") :] for line in log]
    without_left = [line.partition("  left ")[0] for line in ended.out.splitlines()]
    assert [line for line in logged if line.startswith("step ")] == without_left
    assert [line for line in logged if not line.startswith("step ")] == ended.err.splitlines()
