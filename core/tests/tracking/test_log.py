"""What is written to a terminal cannot steer it, whoever writes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ramet.cli import app
from ramet.errors import ConfigError, ConfigErrors, InfraError

STEER = "\x1b]0;owned\x07\x1b[2J"
SHOWN = r"\x1b]0;owned\x07\x1b[2J"

LOGGERS = """
import logging, sys, warnings
from ramet.tracking.log import set_up_logging
set_up_logging(logging.INFO)
foreign = logging.getLogger("library")  # with a handler of its own, as transformers and vLLM have
handler = logging.StreamHandler(sys.stderr)
handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
foreign.addHandler(handler)
foreign.propagate = False
steer = "\\x1b[2J"
logging.getLogger("ramet.x").info("tool said %s", steer)
foreign.warning(f"model type {steer}")
try:
    raise ValueError(steer)
except ValueError:
    foreign.exception("it raised")
warnings.warn(steer)
"""


def test_records_of_all_loggers_are_harmless():
    done = subprocess.run([sys.executable, "-c", LOGGERS], capture_output=True, text=True, timeout=60, check=True)
    assert "\x1b" not in done.stderr
    lines = done.stderr.splitlines()
    assert lines[:3] == [r"tool said \x1b[2J", r"[library] model type \x1b[2J", "[library] it raised"]
    assert lines[-2:] == [r"ValueError: \x1b[2J", r"<string>:17: UserWarning: \x1b[2J"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigErrors([f"one {STEER}", f"two\n{STEER}"]), f"error: one {SHOWN}\nerror: two\n       {SHOWN}\n"),
        (InfraError(STEER), f"error: {SHOWN}\n"),
        (ValueError(STEER), f"ValueError: {SHOWN}\nerror: internal: ValueError: {SHOWN}\n"),
    ],
)
def test_errors_of_commands_are_harmless(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, expected: str
):
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setitem(app.COMMANDS, "fail", SimpleNamespace(summary="", run=fail))
    app.main(["fail"])
    err = capsys.readouterr().err
    assert err.endswith(expected) and "\x1b" not in err


def test_names_in_files_are_shown_and_steer_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "p", "answer": {"\\u001b[2J": 1}}\n')
    assert app.main(["data", "inspect", str(path), "tools=[]"]) == 1
    assert app.main(["checkpoints", str(tmp_path / STEER)]) == 1
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err and r"\x1b[2J" in out and SHOWN in err
    with pytest.raises(ConfigError):
        app.COMMANDS["checkpoints"].run([])
