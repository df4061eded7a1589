"""The worker with another environment than one of `verifiers`: it does what the data of a task say."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parents[1] / "src/ramet_verifiers/worker.py"


def load_worker() -> Any:
    spec = importlib.util.spec_from_file_location("ramet_verifiers_worker", WORKER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class StandIn:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        print("loading")  # not a message
        if (fault := settings["arguments"].get("fault")) is not None:
            raise ValueError(fault)

    def tasks(self, limit: int | None) -> Iterator[dict[str, Any]]:
        yield from ({"messages": [], "data": {"idx": n}} for n in range(limit or 3))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        yield

    async def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        do = request["data"]["do"]
        if do == "die":
            print("no memory", file=sys.stderr, flush=True)
            os._exit(3)
        if do == "fail":
            raise OSError("no disk")
        if do == "wait":
            file = Path(request["data"]["file"])
            file.with_suffix(".began").touch()
            try:
                await asyncio.sleep(100)
            finally:
                file.touch()
        if do == "read":
            return {"answer": sys.stdin.read()}
        return {"answer": await asyncio.to_thread(ask, request)}


def ask(request: Mapping[str, Any]) -> str:
    """The policy's reply to one request over HTTP."""
    body = {"model": request["model"], "messages": [{"role": "user", "content": "1 + 1 = ?"}]}
    url, headers = f"{request['base_url']}/chat/completions", {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
        return json.load(response)["choices"][0]["message"]["content"]


if __name__ == "__main__":
    load_worker().main(StandIn)
