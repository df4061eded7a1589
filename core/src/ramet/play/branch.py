"""`ramet play --from RUN:ROLLOUT:TURN`: another branch of a recorded rollout, drawn next to it.

The branch begins where the turn begins, with the recorded tokens before it. The turn is sampled again, or its message
or its tool's result is given, and the rollout continues with the run's tools and weights. The run is not changed.
"""

from __future__ import annotations

import sys
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ramet.cluster.local import LocalRollouts
from ramet.components.engines import build_engine
from ramet.components.services import RunServices
from ramet.components.toolbox import open_tools
from ramet.engines.protocol import Completion, Request
from ramet.errors import ConfigError
from ramet.event_loop import run_async
from ramet.io.json_values import visible
from ramet.models.encoder import Encoder
from ramet.models.loading import build_encoder
from ramet.models.torch_setup import set_up_torch
from ramet.play.recorded import PreparedReplay, ReplayGroup, prepare, weights_after
from ramet.rollout.keys import RolloutKey
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.played import PlayedEngine, given_completion
from ramet.rollout.scoring import ScoredRollout
from ramet.runs.recomposed import recomposed
from ramet.tracking.console import PipeConsole
from ramet.tracking.run_log import recording
from ramet.types import Rollout, Segment, SegmentKind

FORM = "RUN:STEP/TASK/ROLLOUT:TURN, as in runs/first:1/tasks/7/0.1:2; turns are counted from 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAddress:
    """A turn of a recorded rollout. `step` is 0 in an evaluation."""

    run: str
    step: int
    task: str
    rollout: str
    turn: int

    @classmethod
    def read(cls, text: str) -> TurnAddress:
        """Read the form `FORM`. Raises `ConfigError` for another one."""
        run, _, rest = text.partition(":")
        rollout, _, turn = rest.rpartition(":")
        try:
            key = RolloutKey.parse(f"run/{rollout}")
            return cls(run=run, step=key.step, task=key.task, rollout=key.path, turn=int(turn))
        except ValueError as error:
            raise ConfigError(f"--from {text}: the form is {FORM}") from error

    def of(self, groups: Sequence[ReplayGroup]) -> tuple[ReplayGroup, ScoredRollout]:
        """The recorded rollout. Raises `ConfigError` if there is none, or it has no such turn."""
        group = next((g for g in groups if g.name == self.task and g.record.step == self.step), None)
        if group is None:
            shown = ", ".join(g.name for g in groups[:8])
            raise ConfigError(f"--from: step {self.step} of {self.run} has no task {self.task!r}; among them: {shown}")
        scored = next((s for s in group.record.group.rollouts if s.rollout.id == self.rollout), None)
        if scored is None:
            ids = ", ".join(rollout.id for rollout in group.rollouts)
            raise ConfigError(f"--from: task {self.task!r} has no rollout {self.rollout!r}; there: {ids}")
        if not scored.rollout.segments:  # lost with its node
            why = "" if scored.rollout.fault is None else f": {scored.rollout.fault.message}"
            raise ConfigError(f"--from: rollout {self.rollout} of task {self.task!r} has no recorded tokens{why}")
        last = scored.rollout.segments[-1].turn
        if not 0 <= self.turn <= last:
            raise ConfigError(f"--from: rollout {self.rollout} has the turns 0 to {last}, got {self.turn}")
        return group, scored


def run(
    place: TurnAddress,
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    n: int = 1,
    message: str | None = None,
    result: str | None = None,
    one_model: bool = False,
    config_dir: Path | None = None,
) -> bool:
    """Run `n` branches and draw them; returns whether infrastructure failed in none.

    `message`: the policy's text of the turn. `result`: the tool's result of the turn. `one_model`: `model.path` has the
    weights, whatever sampled the rollout. Raises `ConfigErrors` before anything starts.
    """
    if message is not None and result is not None:
        raise ConfigError("ramet play --from: give --message or --result: another message makes other calls")
    with recording():
        resolved = recomposed(folder, overrides, config_dir=config_dir)
        if not 1 <= n <= resolved.config.rollout.max_concurrent:
            most = resolved.config.rollout.max_concurrent
            raise ConfigError(f"--n {n}: must be at least 1 and at most rollout.max_concurrent={most}")
        prepared = prepare(folder, resolved, step=place.step or None, limit=None)
        group, scored = place.of(prepared.groups)
        if not one_model and (problem := group.missing_weights(folder, resolved.config)) is not None:
            raise ConfigError(f"--from: {problem}")
        set_up_torch(resolved.config.run)
        encoder, rollout, turn = build_encoder(resolved.config), scored.rollout, place.turn
        if result is not None:
            rollout, turn = with_result(rollout, turn, result, encoder), turn + 1
        request, n_updates = group.continued(rollout, turn, n, "play"), 0 if one_model else group.n_updates
        rollouts = run_async(
            _branches(folder, prepared, request, encoder, n_updates=n_updates, message=message, turn=turn)
        )
        draw(scored, rollouts, place)
        return all(rollout.valid for rollout in rollouts)


async def _branches(
    folder: Path,
    prepared: PreparedReplay,
    request: RolloutRequest,
    encoder: Encoder,
    *,
    n_updates: int,
    message: str | None,
    turn: int,
) -> Sequence[Rollout]:
    """Run the request with the weights after so many updates. `message`, if not None, is what `turn` samples."""
    config = prepared.resolved.config
    engine = build_engine(config, encoder)

    def given(request: Request) -> Completion | None:
        if message is None or request.id.rpartition("/")[2] != str(turn):
            return None
        ids = array("i", [*encoder.markup(message), encoder.end_of_turn_id])
        return given_completion(request, ids, encoder)

    with tempfile.TemporaryDirectory(prefix="ramet-play-") as temporary:
        services = RunServices(folder=Path(temporary), seed=config.run.seed)
        rollouts = LocalRollouts(
            config,
            encoder,
            components=prepared.components,
            tools=await open_tools(config, services, expected=prepared.tools.sets),
            engine=PlayedEngine(given, engine.info, engine),
        )
        try:
            if n_updates:
                await rollouts.update_weights(weights_after(folder, config, n_updates).items(), n_updates)
            (group,) = await rollouts.run(request)
        finally:
            await rollouts.close()
            await engine.close()
    return group.rollouts


def with_result(rollout: Rollout, turn: int, text: str, encoder: Encoder) -> Rollout:
    """Return the rollout with another result of the only call of a turn.

    Raises `ConfigError` if the turn has not one call whose result is inserted as the tool gave it, at a place that is
    clear from the tokens.
    """
    calls = [call for call in rollout.tool_calls if call.turn == turn]
    sampled = False
    for at, segment in enumerate(rollout.segments):
        sampled |= segment.kind is SegmentKind.TURN and segment.turn == turn
        if sampled and segment.turn == turn and segment.kind is SegmentKind.RESULT and len(calls) == 1:
            around = _around(segment, calls[0].text, encoder)
            if len(around) == 1:
                before, after = around[0]
                ids = _joined(before, text, after, encoder)
                edited = replace(segment, text=f"{before}{text}{after}", token_ids=ids)
                return replace(rollout, segments=(*rollout.segments[:at], edited, *rollout.segments[at + 1 :]))
    raise ConfigError(
        f"--result: turn {turn} of rollout {rollout.id} has {len(calls)} calls, and takes another result only for one "
        "call whose result is inserted as the tool gave it, at one place; give --message instead"
    )


def _around(segment: Segment, result: str, encoder: Encoder) -> list[tuple[str, str]]:
    """The texts before and after the result: wherever the segment has these tokens with the result there."""
    places = (at for at in range(len(segment.text)) if segment.text.startswith(result, at))
    around = ((segment.text[:at], segment.text[at + len(result) :]) for at in places)
    return [(before, after) for before, after in around if _joined(before, result, after, encoder) == segment.token_ids]


def _joined(before: str, text: str, after: str, encoder: Encoder) -> array[int]:
    """Token ids of a result with its wrapper."""
    return encoder.markup(before) + encoder.untrusted(text) + encoder.markup(after)


def draw(scored: ScoredRollout, branches: Sequence[Rollout], place: TurnAddress) -> None:
    """Print the recorded rollout and its branches in columns, a row for each turn from the changed one on."""
    console = PipeConsole(file=sys.stdout, highlight=False, markup=False, emoji=False)
    recorded, columns = scored.rollout, [scored.rollout, *branches]
    before = [
        segment for segment in recorded.segments if segment.turn < place.turn or segment.kind is SegmentKind.PROMPT
    ]
    console.print(Text(f"before turn {place.turn}, shared:", "bold"))
    console.print(Text(visible("".join(segment.text for segment in before)), "dim"))
    table = Table("turn", f"recorded {recorded.id}", *(f"branch {n}" for n in range(1, len(columns))), show_lines=True)
    for turn in range(place.turn, 1 + max(rollout.segments[-1].turn for rollout in columns)):
        table.add_row(str(turn), *(Text(visible(_turn_text(rollout.segments, turn))) for rollout in columns))
    reward = "masked" if scored.reward is None else f"reward {scored.reward:g}"
    ends = [f"{rollout.stop}, answer {rollout.answer!r}" for rollout in columns]
    table.add_row("end", Text(f"{ends[0]}; {reward}"), *map(Text, ends[1:]))
    console.print(table)
    for n, rollout in enumerate(branches, start=1):
        if rollout.fault is not None:
            console.print(Text(f"branch {n} is masked: {rollout.fault.where}: {rollout.fault.message}", "red"))


def _turn_text(segments: Sequence[Segment], turn: int) -> str:
    return "".join(s.text for s in segments if s.turn == turn and s.kind is not SegmentKind.PROMPT)
