"""`ramet gateway`: a model served to an agent as a run would serve it, and a record of what passed.

It is for trying an agent before it is trained: the same server, sessions and threads. Nothing is trained. One session
takes all requests until the command is stopped; the control plane opens more.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramet.components.build import Components
from ramet.components.checks import check_components, warn_of_remote_model
from ramet.components.engines import build_engine, check_engine
from ramet.config.checks import check
from ramet.config.resolved import Resolved
from ramet.engines.protocol import Sampling
from ramet.errors import ConfigError, raise_all
from ramet.event_loop import run_async
from ramet.models.check import check_model
from ramet.models.loading import build_encoder
from ramet.models.torch_setup import check_torch, set_up_torch
from ramet.rollout.gateway.control import ControlPlane
from ramet.rollout.gateway.episodes import AgentEpisode
from ramet.rollout.gateway.messages import BadRequest
from ramet.rollout.gateway.server import Gateway
from ramet.rollout.gateway.session import AgentSession, SessionLimits, SessionSettings
from ramet.rollout.keys import RolloutKey
from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.tracking.run_log import recording
from ramet.types import AgentResult, AgentStatus, Fault, Rollout, StopReason, Task

NAME = RolloutKey("gateway", 0, "served", "0")
MOST_TURNS = 100_000
SESSION_NAME = re.compile(r"[A-Za-z][\w.-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Options of the command, by their keys below `gateway.`."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    record: Path = Path("gateway.jsonl.gz")
    max_tokens: int = 1_000_000  # of all requests of a session together
    admin_key: str = ""  # of the control plane; empty: a random one, which is printed


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
    warn_of_remote_model(config)
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


class Sessions:
    """The sessions that are served, each a rollout of the record: first the one whose key is printed."""

    def __init__(self, settings: SessionSettings) -> None:
        self.gateway: Gateway | None = None  # set before any is opened
        self.episodes: list[AgentEpisode] = []
        self._settings = settings

    def open(self, name: str | None = None) -> AgentEpisode:
        """Open a session. Raises `BadRequest` for a name that is taken, or that cannot be in a path."""
        assert self.gateway is not None
        if name is not None and not SESSION_NAME.fullmatch(name):
            what = f"name must begin with a letter and have at most 64 letters, digits and _ . -, got {name!r:.80}"
            raise BadRequest(what, field="name")
        if name in [episode.id for episode in self.episodes]:
            raise BadRequest(f"there is a session {name!r} already", status=409, field="name")
        number = str(len(self.episodes))
        session = AgentSession(replace(NAME, path=number).text, self._settings)
        offer = {"model": self.gateway.model}
        episode = AgentEpisode(id=name or number, key=self.gateway.open(session), session=session, offer=offer)
        self.episodes.append(episode)
        return episode


async def _serve(resolved: Resolved, options: GatewayOptions, say: Callable[[str], None]) -> Path | None:
    config = resolved.config
    encoder = build_encoder(config)
    engine = build_engine(config, encoder)
    sampling = Sampling(temperature=config.rollout.temperature, max_tokens=options.max_tokens)
    limits = SessionLimits(max_turns=MOST_TURNS, max_tokens=options.max_tokens)
    sessions = Sessions(
        SessionSettings(engine=engine, encoder=encoder, limits=limits, sampling=sampling, seed=config.run.seed)
    )
    control = ControlPlane(options.admin_key or None, open_session=sessions.open)
    model = str(config.model.path)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        async with Gateway(host=options.host, port=options.port, model=model, control=control) as gateway:
            sessions.gateway = gateway
            control.add(first := sessions.open())
            say(f"address: {gateway.url}/v1")
            say(f"key: {first.key}")
            say(f"admin key: {control.admin_key if control.is_drawn else 'as given'}")
            say("Ctrl-C ends it, and writes the record.")
            await ended.wait()
    finally:
        await engine.close()
    return _write(sessions, options.record, say)


def _write(sessions: Sessions, record: Path, say: Callable[[str], None]) -> Path | None:
    task = Task(id=NAME.task, prompt=())
    asked = [(number, episode) for number, episode in enumerate(sessions.episodes) if episode.session.threads.turns]
    if not asked:
        say("no request came")
        return None
    rollouts = [_rollout(number, episode, task) for number, episode in asked]
    scored = tuple(ScoredRollout(rollout=rollout, reward=None) for rollout in rollouts)
    write_records(record, [GroupRecord(step=0, group=ScoredGroup(task=task, rollouts=scored))])
    say(
        f"{sum(len(rollout.infos) for rollout in rollouts)} turns in "
        f"{sum(len(rollout.threads) for rollout in rollouts)} threads, "
        f"{sum(rollout.n_sampled_tokens for rollout in rollouts)} sampled tokens, "
        f"{sum(episode.session.malformed_calls for _, episode in asked)} malformed calls: {record}"
    )
    return record


def _rollout(number: int, episode: AgentEpisode, task: Task) -> Rollout:
    """A session with what its end said, if it was ended."""
    session, result, fault = episode.session, AgentResult(), None
    if episode.result.done():
        if (outage := episode.result.exception()) is not None:
            fault = Fault(where="agent", message=str(outage))
        else:
            result = episode.result.result()
    (segments, starts), turns = session.segments(), session.threads.turns
    infos: list[dict[str, Any]] = [{"asked": dict(turn.asked)} if turn.asked else {} for turn in turns]
    infos[-1] |= {**result.info, **({"session": episode.id} if number else {})}
    crashed = result.status is AgentStatus.FAILED
    answer = None if crashed else result.answer
    return Rollout(
        id=str(number),
        task=task,
        segments=tuple(segments),
        thread_starts=starts,
        stop=StopReason.DONE if answer is None else StopReason.ANSWER,
        answer=answer,
        infos=(*infos[:-1], {**infos[-1], **({"agent": str(result.status)} if crashed else {})}),
        turn_rewards=tuple(session.rewards.by_turn(len(turns), result.reward)),
        token_rewards=session.rewards.by_position(turns),
        fault=fault,
        left_out="not_judged",
    )
