"""Runs `ramet` commands in forked copies of one process that has imported everything and done nothing yet.

A fresh interpreter spends seconds on importing torch and transformers; a forked one starts at once and is otherwise a
process like any other: its own exit code, its own files, and it can be killed. Reads requests and writes replies as
JSON lines; the requests are `{"argv", "env", "cwd", "out", "err"}`, which starts a command, and `{"wait": pid}`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import transformers.models.qwen2.modeling_qwen2  # noqa: F401

import ramet.config.compose
import ramet.train.training  # noqa: F401
from ramet.cli import main
from ramet.models.tiny import make_tiny_model


def serve() -> None:
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"forking a process of {threads} threads is not safe"
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]) if "wait" in request else start(request)
        print(json.dumps(answer), flush=True)


def start(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 2
    try:
        os.chdir(request["cwd"])
        os.environ.update(request["env"])
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests' own parent did with it
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in ((1, request["out"]), (2, request["err"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = run(request["argv"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(argv: list[str]) -> int:
    if argv[0] == "make-model":
        make_tiny_model(argv[1], hidden=32, layers=2, heads=2, intermediate=64, max_positions=256)
        return 0
    for name in filter(None, os.environ.get("E2E_WITHOUT", "").split(",")):
        sys.modules[name] = None  # type: ignore[assignment]  # as if it were not installed
    sys.argv = ["ramet", *argv]
    return main(argv)


if __name__ == "__main__":
    serve()
