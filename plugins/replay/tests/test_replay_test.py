"""`ramet test`: recorded rollouts run again without a difference, and what changed is found at its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from ramet import Insert, Markup, StepResult, StopReason, ToolCall, Untrusted, api, function_tool, per_rollout
from ramet.cli import main
from ramet.errors import ConfigError, ConfigErrors, ToolError
from ramet.models.tiny import make_tiny_model
from ramet.rollout.record import read_records, write_records
from ramet.testing import registered
from ramet.types import (
    BenchmarkInfo,
    CallStatus,
    Rollout,
    RolloutState,
    StepContext,
    Task,
    ToolRecord,
    ToolResult,
    ToolSchema,
    user_prompt,
)
from ramet_replay.replay_test.job import Compare, ReplayTestOptions, ReplayTestResult, ToolResults, describe, run
from ramet_replay.replay_test.junit import check_junit
from ramet_replay.replay_test.played import PlayedTool, RecordedCalls

MakeModel = Callable[[int], Path]


class TwoCalls:
    """A rollout step that gives what the policy wrote to a tool, twice; then its text is the answer."""

    def __init__(self, change: Callable[[str], str] = str) -> None:
        self.change = change  # another parser

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        text = (await ctx.generate(stop=("e",))).text
        if state.turn == 2:
            return StepResult(stop=StopReason.ANSWER, answer=text)
        argument = self.change(text) if state.turn else text
        result = await ctx.call_tool(ToolCall(name="size", arguments={"text": argument}))
        insert: list[Insert] = [Markup(text="<result>"), Untrusted(text=result.text), Markup(text="</result>")]
        return StepResult(insert=tuple(insert))


def size(text: str) -> str:
    """Returns how long a text is."""
    return f"{len(text)} characters"


def other_size(text: str) -> str:
    """Returns how long a text is."""
    return f"{len(text)} letters"


@per_rollout
def is_short(rollout: Rollout) -> float:
    return float(len(rollout.answer or "") < 4)


@pytest.fixture(scope="module")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """A model by its seed, with distributions that are not flat."""
    folder = tmp_path_factory.mktemp("models")

    def make(seed: int) -> Path:
        path = folder / str(seed)
        if not path.exists():
            make_tiny_model(path, seed=seed, hidden=64, heads=2, layers=2, intermediate=64, initializer_range=0.1)
        return path

    return make


@pytest.fixture(scope="module")
def recorded(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deterministic run of two steps with forks, whose second was sampled by other weights."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    data = folder / "tasks.jsonl"
    data.write_text('{"prompt": "one", "answer": "1"}\n{"prompt": "two", "answer": "2"}\n')
    with ExitStack() as stack:
        for kind, name, factory in [
            ("rollout_step", "two_calls", TwoCalls),
            ("rollout_step", "upper_calls", lambda: TwoCalls(str.upper)),
            ("tools", "size", lambda: function_tool(size)),
            ("tools", "other_size", lambda: function_tool(other_size)),
            ("rewards", "is_short", lambda: is_short),
        ]:
            stack.enter_context(registered(kind, name, factory))
        api.train(
            [
                f"model.path={make_model(1)}", "model.device=cpu", f"data.train=[{data}]", f"run.root={folder}",
                "run.name=recorded", "run.deterministic=true", "trackers=[jsonl]", "data.max_prompt_tokens=64",
                "rollout.max_response_tokens=96", "rollout.max_concurrent=8", "rollout.group_size=4",
                "engine.params.slots=8", "rollout_step=two_calls", "rollout_step.system_prompt=never", "tools=[size]",
                "rewards=[is_short]", "train.tasks_per_step=2", "train.steps=2", "train.save_every=1",
                "branch_policy=random", "branch_policy.params.probability=1.0", "policy.lr=0.01",
            ]
        )  # fmt: skip
        yield folder / "recorded"


def found(result: ReplayTestResult) -> set[tuple[str, int]]:
    return {(str(o.difference.kind), o.difference.turn) for o in result.outcomes if o.difference is not None}


def test_unchanged_code_gives_no_difference_and_junit_names_each_rollout(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit = tmp_path / "junit.xml"
    assert main(["test", str(recorded), "--junit", str(junit)]) == 0
    assert "16 rollouts, sampled again" in capsys.readouterr().out
    rollouts = [one.rollout for one in api.rollouts(recorded)]
    assert any(rollout.parent is not None for rollout in rollouts)
    suites = ElementTree.parse(junit).getroot()
    assert len(list(suites.iter("testcase"))) == len(rollouts) == int(suites.attrib["tests"])
    assert suites.attrib["failures"] == suites.attrib["errors"] == suites.attrib["skipped"] == "0"


def test_other_engines_compare_log_probabilities(recorded: Path, make_model: MakeModel) -> None:
    same = run(recorded, ["run.deterministic=false"])
    assert same.compare == "logprobs" and found(same) == set()
    other = run(
        recorded, ["run.deterministic=false", f"model.path={make_model(2)}"], ReplayTestOptions(step=1, one_model=True)
    )
    assert found(other) == {("sampled", 0)} and all(outcome.difference for outcome in other.outcomes)


def test_equal_differences_are_one_line_with_their_number(recorded: Path) -> None:
    result = run(recorded, ["rollout_step.instruction=Count."], ReplayTestOptions(step=1))
    shown = describe(result)
    assert len(result.outcomes) == 8 and len(shown) == 4  # both tasks have four rollouts
    assert all("rollout 0 and 3 more: turn 0" in line for line in shown[1:3])


@pytest.mark.parametrize(
    ("change", "tools", "kinds"),
    [
        ("rollout_step.instruction=Count.", ToolResults.RECORDED, {("prompt", 0)}),
        ("rollout_step=upper_calls", ToolResults.RECORDED, {("call", 1)}),
        ("tools.size.use=other_size", ToolResults.RECORDED, set()),
        ("tools.size.use=other_size", ToolResults.RUN, {("tool", 0)}),
        ("rollout.max_turns=2", ToolResults.RECORDED, {("call", 1)}),
        ("rollout.max_response_tokens=8", ToolResults.RECORDED, {("call", 0)}),  # no room for a result
    ],
)
def test_a_change_is_found_at_its_turn(
    recorded: Path, change: str, tools: ToolResults, kinds: set[tuple[str, int]]
) -> None:
    assert found(run(recorded, [change], ReplayTestOptions(tools=tools, step=1))) == kinds


def test_other_weights_are_found_and_sampled_from_there(
    recorded: Path, make_model: MakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["test", str(recorded), "--model", str(make_model(2)), "--samples", "3", "--limit", "1"]
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "turn 0, token" in out and "from here again mean" in out and "of 3 (" in out


class OneTask:
    """A benchmark of one task."""

    info = BenchmarkInfo(description="one", splits=("test",), metrics=("accuracy",), source="here", licence="MIT")

    def load(self, split: str, limit: int | None) -> list[Task]:
        return [Task(id="one/0", prompt=user_prompt("one"), answer=("1",))]

    async def score(self, rollout: Rollout) -> dict[str, float | None]:
        return {"accuracy": float(rollout.answer == "1")}


def test_two_benchmarks_may_have_the_same_tasks(make_model: MakeModel, tmp_path: Path) -> None:
    """Their rollouts have the same keys, and other tokens."""
    with registered("benchmarks", "one_task", OneTask):
        api.evaluate(
            [
                f"model.path={make_model(1)}", "model.device=cpu", f"run.root={tmp_path}", "run.name=evaluated",
                "benchmarks=[hot,cold]", "benchmarks.hot.use=one_task", "benchmarks.cold.use=one_task",
                "benchmarks.cold.sampling={temperature: 0.2}", "rollout_step.system_prompt=never", "trackers=[jsonl]",
                "data.max_prompt_tokens=64", "rollout.max_response_tokens=16", "rollout.max_concurrent=8",
            ]
        )  # fmt: skip
        result = run(tmp_path / "evaluated")
    hot, cold = (next(o for o in result.outcomes if o.group.benchmark == name) for name in ("hot", "cold"))
    assert result.compare == "logprobs" and found(result) == set()
    assert (
        hot.rollout.id == cold.rollout.id and hot.rollout.segments[-1].token_ids != cold.rollout.segments[-1].token_ids
    )


def test_a_changed_tool_is_sampled_after_its_result(recorded: Path) -> None:
    result = run(
        recorded, ["tools.size.use=other_size"], ReplayTestOptions(tools=ToolResults.RUN, step=1, limit=1, samples=2)
    )
    assert all(len(outcome.samples) == 2 for outcome in result.outcomes)
    assert any("from here again" in line for line in describe(result))


def test_errors_are_played_as_the_tool_gave_them(recorded: Path) -> None:
    rollout = next(iter(api.rollouts(recorded))).rollout
    raised, returned = (
        replace(rollout.tool_calls[0], status=CallStatus.ERROR, text="no", metadata=metadata)
        for metadata in ({}, {"rc": 1})
    )
    call = ToolCall(name=raised.name, arguments=raised.arguments, rollout="key", turn=raised.turn)

    def played(record: ToolRecord) -> ToolResult:
        records = RecordedCalls({"key": replace(rollout, tool_calls=(record,))})
        return asyncio.run(PlayedTool(function_tool(size).schema, records)(call))

    assert played(returned) == ToolResult(text="no", error=True, metadata={"rc": 1})
    with pytest.raises(ToolError, match="no"):
        played(raised)


def test_rollouts_whose_weights_are_gone_are_not_tested(recorded: Path, tmp_path: Path) -> None:
    for name in ("config.yaml", "manifest.json", "overrides.txt"):
        (tmp_path / name).write_bytes((recorded / name).read_bytes())
    second = recorded / "rollouts" / "step_000002.jsonl.gz"
    write_records(tmp_path / "rollouts" / second.name, read_records(second))
    with pytest.raises(ConfigError, match=r"none of \d+ rollouts can be tested: the weights that sampled it are not"):
        run(tmp_path)
    first = recorded / "rollouts" / "step_000001.jsonl.gz"
    write_records(tmp_path / "rollouts" / first.name, read_records(first))
    assert {(o.group.record.step, o.untested is None) for o in run(tmp_path).outcomes} == {(1, True), (2, False)}


def test_mistakes_are_named(recorded: Path, tmp_path: Path) -> None:
    other = tmp_path / "mine.xml"
    other.write_text("<mine/>")
    assert main(["test", str(recorded), "--junit", str(other)]) == 1 and other.read_text() == "<mine/>"
    assert check_junit(other / "test.xml") and not check_junit(tmp_path / "new/test.xml")
    with pytest.raises(ConfigErrors, match="--limit 0"):
        run(recorded, [], ReplayTestOptions(limit=0))
    with pytest.raises(ConfigError, match="step budget"):
        run(recorded, ["train.budget=random"])
    with pytest.raises(ConfigError, match="no recorded rollouts of step 9"):
        run(recorded, [], ReplayTestOptions(step=9))
    with pytest.raises(ConfigErrors, match="--compare sample"):
        run(recorded, ["run.deterministic=false"], ReplayTestOptions(compare=Compare.SAMPLE))
