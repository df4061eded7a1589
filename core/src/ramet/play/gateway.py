"""`ramet gateway`: a model served to an agent as a run would serve it, and a record of what passed.

It is for trying an agent before it is trained: the same server, sessions and threads. Nothing is trained, and one
session takes all requests until the command is stopped.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ramet.components.build import Components
from ramet.components.checks import check_components
from ramet.components.engines import build_engine, check_engine
from ramet.config.checks import check
from ramet.config.resolved import Resolved
from ramet.engines.protocol import Sampling
from ramet.errors import ConfigError, raise_all
from ramet.event_loop import run_async
from ramet.models.check import check_model
from ramet.models.loading import build_encoder
from ramet.models.torch_setup import check_torch, set_up_torch
from ramet.rollout.gateway.server import Gateway
from ramet.rollout.gateway.session import AgentSession, SessionLimits, SessionSettings
from ramet.rollout.keys import RolloutKey
from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.tracking.run_log import recording
from ramet.types import Rollout, StopReason, Task

NAME = RolloutKey("gateway", 0, "served", "0")
MOST_TURNS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Options of the command, by their keys below `gateway.`."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    record: Path = Path("gateway.jsonl.gz")
    max_tokens: int = 1_000_000  # of all requests together


def run(resolved: Resolved, options: GatewayOptions, say: Callable[[str], None]) -> Path | None:
    """Serve until the process is asked to end; returns the record, None if nothing was asked.

    `say` prints a line. Raises `ConfigErrors` before anything starts, and `ConfigError` for an address in use.
    """
    config = resolved.config
    components = Components(config)
    problems = [
        *check(resolved, "play"),
        *check_model(config.model),
        *check_torch(config.run, config.model),
        *check_engine(config),
        *check_components(components, config, training=False),
    ]
    raise_all(dict.fromkeys(problems))
    _reserve(options.record)
    written = None
    try:
        with recording():
            set_up_torch(config.run)
            written = run_async(_serve(resolved, options, say))
    finally:
        if written is None:
            options.record.unlink(missing_ok=True)
    return written


def _reserve(record: Path) -> None:
    """Make the record's file, empty: no other program takes the name meanwhile. Raises `ConfigError`."""
    try:
        record.open("x").close()
    except FileExistsError:
        raise ConfigError(f"gateway.record={record}: there is a file already; name another one") from None
    except OSError as error:
        raise ConfigError(f"gateway.record={record}: cannot be written: {error.strerror}") from error


async def _serve(resolved: Resolved, options: GatewayOptions, say: Callable[[str], None]) -> Path | None:
    config = resolved.config
    encoder = build_encoder(config)
    engine = build_engine(config, encoder)
    sampling = Sampling(temperature=config.rollout.temperature, max_tokens=options.max_tokens)
    limits = SessionLimits(max_turns=MOST_TURNS, max_tokens=options.max_tokens)
    settings = SessionSettings(engine=engine, encoder=encoder, limits=limits, sampling=sampling, seed=config.run.seed)
    session = AgentSession(NAME.text, settings)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        async with Gateway(host=options.host, port=options.port, model=str(config.model.path)) as gateway:
            key = gateway.open(session)
            say(f"address: {gateway.url}/v1")
            say(f"key: {key}")
            say("Ctrl-C ends it, and writes the record.")
            await ended.wait()
    finally:
        await engine.close()
    return _write(session, options.record, say)


def _write(session: AgentSession, record: Path, say: Callable[[str], None]) -> Path | None:
    segments, starts = session.segments()
    if not segments:
        say("no request came")
        return None
    task = Task(id=NAME.task, prompt=())
    rollout = Rollout(
        id=NAME.path,
        task=task,
        segments=tuple(segments),
        thread_starts=starts,
        stop=StopReason.DONE,
        infos=tuple({"asked": dict(turn.asked)} if turn.asked else {} for turn in session.threads.turns),
        left_out="not_judged",
    )
    group = ScoredGroup(task=task, rollouts=(ScoredRollout(rollout=rollout, reward=None),))
    write_records(record, [GroupRecord(step=0, group=group)])
    say(
        f"{len(session.threads.turns)} turns in {len(rollout.threads)} threads, {rollout.n_sampled_tokens} sampled "
        f"tokens, {session.malformed_calls} malformed calls: {record}"
    )
    return record
