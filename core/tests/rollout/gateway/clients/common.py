"""Runs the scenarios of one client, in its own environment: each against a session of its own."""

from __future__ import annotations

import json
import os
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


def add(arguments: str) -> str:
    """The tool of the scenarios."""
    given = json.loads(arguments)
    return str(given["a"] + given["b"])


def main(package: str, *scenarios: Callable[..., Any]) -> None:
    """Write a JSON object with the version and what each scenario returned or raised."""
    sessions = json.loads(os.environ["RAMET_SESSIONS"])  # name of a scenario -> url and key
    results = {}
    for scenario in scenarios:
        try:
            results[scenario.__name__] = {"returned": scenario(**sessions[scenario.__name__])}
        except Exception:
            results[scenario.__name__] = {"raised": traceback.format_exc()}
    Path(os.environ["RAMET_RESULTS"]).write_text(json.dumps({"version": version(package), "results": results}))
