"""What the gateway costs: CPU time of a request, less that of a bare aiohttp server which answers with as many bytes.

    python bench/gateway/run.py [--repeats 3] [--profile chat]

256 sessions at the same time, each a conversation of 10 turns: a reply with a tool call, then the tool's result, about
300 tokens together. The engine is in the same process and returns canned tokens at once. The agents are another
process, so that the CPU time of this one is the server's. The bare server reads the same bodies from the same number of
connections, and sends as many bytes in one piece. Both take turns; the first round is not counted.

`--profile DIALECT` prints where the gateway's time goes instead.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import logging
import os
import pstats
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aiohttp import web
from dialects import DIALECTS
from harness import measured, print_table, shown, spread, write_results
from words import train_tokenizer

from ramet.engines.protocol import Capability, Completion, EngineInfo, FinishReason, FirstReport, Request, Sampling
from ramet.models.encoder import Encoder
from ramet.rollout.gateway.server import Gateway
from ramet.rollout.gateway.session import AgentSession, SessionLimits, SessionSettings
from ramet.testing.chat_templates import QWEN25

HERE = Path(__file__).resolve().parent
SESSIONS, TURNS = 256, 10
GOALS = {"cpu_ms_per_request_less_bare": 2.0}
WORDS = (
    "the city of water has old roads and a small museum where people read what was found in the river during the long "
    "summer after the bridge fell because its stones were taken for houses that stand on the hill today and nearly "
    "every family keeps one with a date on it so that visitors ask how it came there and hear another answer each time"
).split()


class CannedEngine:
    """An engine whose replies were made before the run: the same one for every session's n-th turn."""

    def __init__(self, encoder: Encoder, replies: Sequence[str]) -> None:
        self.info = EngineInfo(
            name="canned", capabilities=frozenset(Capability), vocab_size=encoder.vocab_size, max_tokens=1 << 20
        )
        self._ids = [encoder.markup(reply) for reply in replies]
        for ids in self._ids:
            ids.append(encoder.eos_id)
        self.n_sampled = sum(map(len, self._ids))

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        await asyncio.sleep(0)
        ids = self._ids[int(request.id.rpartition("/")[2])]
        return Completion(
            token_ids=ids,
            logprobs=array("f", [-0.5]) * len(ids),
            entropies=array("f", [0.5]) * len(ids),
            finish=FinishReason.END,
            stop=None,
            policy_versions=array("i", [0]) * len(ids),
            prompt_tokens=len(request.token_ids),
            cached_tokens=0,
        )

    def abort(self, request_id: str) -> None:
        """Nothing runs."""

    def release(self, cache_keys: Sequence[str]) -> None:
        """Nothing is kept."""


class Bench:
    """Both servers, the agents' process, and what was measured."""

    def __init__(self, gateway: Gateway, bare_url: str, agents: asyncio.subprocess.Process) -> None:
        self.gateway, self._bare_url, self._agents = gateway, bare_url, agents
        self.words = (2 * WORDS)[:120]
        replies = [self._reply(turn) for turn in range(TURNS)]
        tokenizer = train_tokenizer([" ".join(WORDS), *replies], chat_template=QWEN25)
        self.encoder = Encoder(tokenizer)
        self.engine = CannedEngine(self.encoder, replies)
        self._settings = SessionSettings(
            engine=self.engine,  # type: ignore[arg-type]
            encoder=self.encoder,
            limits=SessionLimits(max_turns=TURNS, max_tokens=1 << 20),
            sampling=Sampling(max_tokens=1),
            seed=1,
        )

    def _reply(self, turn: int) -> str:
        """Text and a call."""
        text = " ".join(Random(turn).choices(WORDS, k=100))
        call = {"name": "search", "arguments": {"query": " ".join(Random(turn).choices(WORDS, k=5)), "limit": turn}}
        return f"{text}\n<tool_call>\n{json.dumps(call)}\n</tool_call>"

    async def pair(self, dialect: str, stream: bool, number: int) -> list[dict[str, Any]]:
        """One run of the gateway, and one of the bare server with the same bodies and bytes."""
        sessions = {self.gateway.open(session): session for session in map(self._session, range(SESSIONS))}
        command = {"dialect": dialect, "stream": stream, "keys": [*sessions], "turns": TURNS, "words": self.words}
        runs = [
            await self._run("gateway", {"url": self.gateway.url, **command}),
            await self._run("bare", {"url": self._bare_url}),
        ]
        assert runs[0]["reply_bytes"] == runs[1]["reply_bytes"] and runs[0]["requests"] == SESSIONS * TURNS
        n_tokens = [self._check(self.gateway.close(key)) for key in sessions]
        more = {"dialect": dialect, "stream": stream, "round": number, "tokens_per_session": median(n_tokens)}
        return [{**run, **more} for run in runs]

    def _session(self, number: int) -> AgentSession:
        return AgentSession(f"gateway/{number}/s/0", self._settings)

    def _check(self, session: AgentSession) -> int:
        """The tokens of a session, which is one thread with every sampled token once."""
        segments, starts = session.segments()
        assert not starts and len(session.threads.turns) == TURNS, "other work was done than was asked for"
        assert sum(len(segment) for segment in segments if segment.is_sampled) == self.engine.n_sampled
        return sum(map(len, segments))

    async def _run(self, server: str, command: Mapping[str, Any]) -> dict[str, Any]:
        assert self._agents.stdin is not None and self._agents.stdout is not None
        with measured() as one:
            gc.enable()  # the garbage of requests is a cost of requests
            self._agents.stdin.write(json.dumps(command).encode() + b"\n")
            done = json.loads(await self._agents.stdout.readline())
        return {"server": server, **done, "cpu_ms": 1000 * one.cpu_s / done["requests"], "load": one.load}


async def bare(request: web.Request) -> web.StreamResponse:
    """Read the body and send as many bytes as the agent says, in one piece."""
    await request.read()
    reply = b" " * int(request.headers["x-bytes"])
    if request.headers["x-stream"] == "False":
        return web.Response(body=reply, content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    await response.write(reply)
    await response.write_eof()
    return response


@asynccontextmanager
async def opened() -> Any:
    """The bench with its servers and the agents' process."""
    app = web.Application(client_max_size=32 << 20)
    for dialect in DIALECTS.values():
        app.router.add_post(dialect.path, bare)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pipe = asyncio.subprocess.PIPE
    agents = await asyncio.create_subprocess_exec(sys.executable, str(HERE / "client.py"), stdin=pipe, stdout=pipe)
    try:
        async with Gateway() as gateway:
            yield Bench(gateway, f"http://127.0.0.1:{runner.addresses[0][1]}", agents)
    finally:
        agents.terminate()
        await agents.wait()
        await runner.cleanup()


async def measure(repeats: int) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    async with opened() as bench:
        for number in range(repeats + 1):
            for dialect in DIALECTS:
                for stream in (False, True):
                    pair = await bench.pair(dialect, stream, number)
                    runs += pair if number else []
    return runs


async def profile(dialect: str) -> None:
    async with opened() as bench:
        await bench.pair(dialect, False, 0)
        profiler = cProfile.Profile()
        profiler.enable()
        await bench.pair(dialect, False, 1)
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def report(runs: list[dict[str, Any]], repeats: int) -> None:
    rows, summary = [], {}
    for dialect, stream in dict.fromkeys((run["dialect"], run["stream"]) for run in runs):
        cpu = {
            server: [
                run["cpu_ms"]
                for run in runs
                if (run["dialect"], run["stream"], run["server"]) == (dialect, stream, server)
            ]
            for server in ("gateway", "bare")
        }
        more = [own - base for own, base in zip(cpu["gateway"], cpu["bare"], strict=True)]
        rows.append([dialect, "yes" if stream else "no", *(shown(v, 2) for v in (cpu["gateway"], cpu["bare"], more))])
        name = f"{dialect}{', streaming' if stream else ''}"
        summary[name] = {
            "gateway_ms": spread(cpu["gateway"]),
            "bare_ms": spread(cpu["bare"]),
            "less_bare": spread(more),
        }
    print_table(("dialect", "streaming", "gateway, CPU ms/request", "bare", "difference"), rows)
    settings = {"repeats": repeats, "sessions": SESSIONS, "turns": TURNS, "goals": GOALS}
    print(f"\nraw numbers: {write_results('gateway', settings, runs, summary)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="rounds; one more comes first and is not counted")
    parser.add_argument("--profile", metavar="DIALECT", choices=[*DIALECTS], help="print a profile instead")
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as `ramet` does
    logging.disable(logging.WARNING)
    if options.profile:
        asyncio.run(profile(options.profile))
    else:
        report(asyncio.run(measure(options.repeats)), options.repeats)


if __name__ == "__main__":
    main()
