"""Runs the scenarios of one client, in its own environment: each against a session of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
QUESTION = "What is 1 + 2, plus 3 + 4?"


def plus(a: int, b: int) -> int:
    """The tool of the scenarios. 0 + 0 kills the process."""
    if a == b == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return a + b


def add(arguments: str) -> str:
    """The tool, with its arguments as JSON."""
    return str(plus(**json.loads(arguments)))


def main(
    package: str,
    *scenarios: Callable[..., Any],
    agent: Callable[..., str],
    killed: Callable[..., Any],
    version: Callable[[str], str] = version,
) -> None:
    """Write a JSON object with the version and what each scenario returned or raised; then run `killed`, in which the
    process is killed.

    As a program of `rollout_step=command`: print what `agent` answers to the task's question.
    """
    if "RAMET_TASK" in os.environ:
        question = json.loads(Path(os.environ["RAMET_TASK"]).read_text())["question"]
        print(agent(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], question))
        sys.exit()
    sessions = json.loads(os.environ["RAMET_SESSIONS"])  # name of a scenario -> url and key
    results = {}
    for scenario in scenarios:
        try:
            results[scenario.__name__] = {"returned": scenario(**sessions[scenario.__name__])}
        except Exception:
            results[scenario.__name__] = {"raised": traceback.format_exc()}
    Path(os.environ["RAMET_RESULTS"]).write_text(json.dumps({"version": version(package), "results": results}))
    killed(**sessions["killed"])
