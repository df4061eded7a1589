"""`ramet play --from`: another branch of a recorded rollout, which leaves the run as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ramet import Insert, Markup, StepResult, StopReason, ToolCall, Untrusted, api, function_tool, per_rollout
from ramet.cli import main
from ramet.errors import ConfigError, ConfigErrors
from ramet.models.loading import build_encoder
from ramet.models.tiny import make_tiny_model
from ramet.play.branch import TurnAddress, with_result
from ramet.play.recorded import prepare
from ramet.runs.recomposed import recomposed
from ramet.testing import registered
from ramet.types import Fault, Rollout, RolloutState, SegmentKind, StepContext, ToolSchema


class TwoCalls:
    """A rollout step that gives what the policy wrote to a tool, twice; then its text is the answer."""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        text = (await ctx.generate(stop=("e",))).text
        if state.turn == 2:
            return StepResult(stop=StopReason.ANSWER, answer=text)
        result = await ctx.call_tool(ToolCall(name="size", arguments={"text": text}))
        insert: list[Insert] = [Markup(text="<result>"), Untrusted(text=result.text), Markup(text="</result>")]
        return StepResult(insert=tuple(insert))


def size(text: str) -> str:
    """Returns how long a text is."""
    return f"{len(text)} characters"


@per_rollout
def is_short(rollout: Rollout) -> float:
    return float(len(rollout.answer or "") < 4)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of one step."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    make_tiny_model(folder / "model", hidden=64, heads=2, layers=2, intermediate=64, initializer_range=0.1)
    (folder / "tasks.jsonl").write_text('{"prompt": "one", "answer": "1"}\n')
    with ExitStack() as stack:
        stack.enter_context(registered("rollout_step", "two_calls", TwoCalls))
        stack.enter_context(registered("tools", "size", lambda: function_tool(size)))
        stack.enter_context(registered("rewards", "is_short", lambda: is_short))
        api.train(
            [
                f"model.path={folder / 'model'}", "model.device=cpu", f"data.train=[{folder / 'tasks.jsonl'}]",
                f"run.root={folder}", "run.name=recorded", "trackers=[jsonl]", "data.max_prompt_tokens=64",
                "rollout.max_response_tokens=96", "rollout.max_concurrent=8", "rollout.group_size=2",
                "engine.params.slots=8", "rollout_step=two_calls", "rollout_step.system_prompt=never", "tools=[size]",
                "rewards=[is_short]", "train.tasks_per_step=1", "train.steps=1",
            ]
        )  # fmt: skip
        yield folder / "recorded"


def test_a_run_of_others_names_no_program_by_itself(recorded: Path, tmp_path: Path) -> None:
    for name in ("config.yaml", "manifest.json", "overrides.txt"):
        (tmp_path / name).write_bytes((recorded / name).read_bytes())
    overrides = tmp_path / "overrides.txt"
    overrides.write_text(overrides.read_text() + "data.columns={prompt: '${oc.env:SECRET,x}'}\n")
    with pytest.raises(ConfigErrors, match="--trust-recipe"):
        recomposed(tmp_path)


def test_play_draws_another_branch(
    recorded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "600")  # no text is wrapped
    before = {path: path.stat().st_mtime_ns for path in recorded.rglob("*")}
    first = next(iter(api.rollouts(recorded))).rollout
    place = f"{recorded}:1/{first.task.id}/{first.id}"
    assert main(["play", "--from", f"{place}:1", "--message", "maybe", "--n", "2"]) == 0
    out = capsys.readouterr().out
    assert "branch 2" in out and "maybe<result>5 characters</result>" in out
    assert main(["play", "--from", f"{place}:0", "--result", "nothing"]) == 0
    assert "<result>nothing</result>" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in recorded.rglob("*")} == before


def test_places_and_results_that_are_not_there(recorded: Path) -> None:
    with pytest.raises(ConfigError, match="STEP/TASK/ROLLOUT"):
        TurnAddress.read("runs/first:12")
    prepared = prepare(recorded, recomposed(recorded), step=1, limit=None)
    group = prepared.groups[0]
    place = TurnAddress(run="r", step=1, task=group.name, rollout="7", turn=0)
    with pytest.raises(ConfigError, match="no rollout '7'"):
        place.of(prepared.groups)
    with pytest.raises(ConfigError, match="step 0 of r has no task"):
        replace(place, step=0).of(prepared.groups)
    fault = Fault(where="node", message="its node is lost")
    lost = [replace(one, rollout=replace(one.rollout, segments=(), fault=fault)) for one in group.record.group.rollouts]
    record = replace(group.record, group=replace(group.record.group, rollouts=tuple(lost)))
    with pytest.raises(ConfigError, match=r"rollout 0 of task .* has no recorded tokens: its node is lost"):
        replace(place, rollout="0").of([replace(group, record=record)])


def test_another_result_takes_the_place_of_the_recorded_one(recorded: Path) -> None:
    """Also where the text of the result is in its wrapper, and never where its place is not known."""
    resolved = recomposed(recorded)
    encoder = build_encoder(resolved.config)
    rollout = prepare(recorded, resolved, step=1, limit=1).groups[0].rollouts[0]
    at = next(i for i, segment in enumerate(rollout.segments) if segment.kind is SegmentKind.RESULT)

    def edited(before: str, text: str, after: str) -> str:
        ids = encoder.markup(before) + encoder.untrusted(text) + encoder.markup(after)
        result = replace(rollout.segments[at], text=f"{before}{text}{after}", token_ids=ids)
        call = replace(rollout.tool_calls[0], text=text)
        segments = (*rollout.segments[:at], result, *rollout.segments[at + 1 :])
        changed = replace(rollout, segments=segments, tool_calls=(call, *rollout.tool_calls[1:]))
        return with_result(changed, 0, "other", encoder).segments[at].text

    assert edited("<result>", "result", "</result>") == "<result>other</result>"
    for before, text, after in [("tool: ", "tool", "</result>"), ("<result>", "", "</result>")]:
        with pytest.raises(ConfigError, match="--result"):
            edited(before, text, after)


def test_weights_that_are_gone_are_named_by_a_key_that_the_command_has(recorded: Path) -> None:
    resolved = recomposed(recorded)
    group = prepare(recorded, resolved, step=1, limit=1).groups[0]
    sampled = [replace(s, policy_version=7) if s.is_sampled else s for s in group.rollouts[0].segments]
    rollout = replace(group.rollouts[0], segments=tuple(sampled))
    scored = replace(group.record.group.rollouts[0], rollout=rollout)
    record = replace(group.record, group=replace(group.record.group, rollouts=(scored,)))
    assert "model.path=" in str(replace(group, record=record).missing_weights(recorded, resolved.config))


def test_a_continuation_opens_states_with_the_seeds_of_the_record(recorded: Path) -> None:
    """Their seeds are of the salt, the name, the step and the root in which the rollout began."""
    group = prepare(recorded, recomposed(recorded), step=1, limit=1).groups[0]
    rollout = group.rollouts[0]
    request, other = (group.continued(rollout, 1, 2, purpose) for purpose in ("play", "test"))
    assert request.begin is not None and request.begin.source.opened_step == 1
    assert request.begin.source.opened_root == rollout.id.partition(".")[0]
    assert (request.plan.salt, request.names) == (group.plan.salt, [group.name])
    assert len({request.step, other.step, 1}) == 3  # other tokens are sampled
