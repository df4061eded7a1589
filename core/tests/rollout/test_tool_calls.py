"""What a rollout step's calls are told, how they are counted and recorded, and what may be repeated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.config.schema import ToolConfig
from ramet.errors import InfraError, PluginError
from ramet.models.encoder import Encoder
from ramet.rollout.record import GroupRecord, read_records, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.rollout.tools import runner as tool_runner
from ramet.rollout.tools.runner import ToolRunner
from ramet.rollout.watchdog import Watchdog
from ramet.testing.doubles import EchoTool, echo_tool
from ramet.types import (
    CallStatus,
    RolloutState,
    SegmentKind,
    StepContext,
    StepResult,
    StopReason,
    ToolCall,
    ToolRecord,
    ToolResult,
    Untrusted,
)

Play = Callable[..., Any]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_runner, "BACKOFF_S", 0.01)


class Gathers:
    """Calls the tool with all `texts` at once in the first turn, and ends."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def system_prompt(self, tools: Any) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        await ctx.generate()
        await asyncio.gather(*(ctx.call_tool(ToolCall(name="python", arguments={"text": t})) for t in self.texts))
        return StepResult(stop=StopReason.END)


class Grouped(Gathers):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        await ctx.generate()
        async with asyncio.TaskGroup() as tasks:
            for text in self.texts:
                tasks.create_task(ctx.call_tool(ToolCall(name="python", arguments={"text": text})))
                await asyncio.sleep(0.02)
        return StepResult()


class Catches(Gathers):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        try:
            return await super().__call__(state, ctx)
        except Exception:
            return StepResult(insert=(Untrusted(text="more!"),), reward=0.5)


class Answers(Gathers):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        try:
            return await super().__call__(state, ctx)
        except Exception:
            return StepResult(stop=StopReason.ANSWER, answer="x")


class Wraps(Gathers):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        try:
            return await super().__call__(state, ctx)
        except Exception as error:
            raise ValueError("too much") from error


@pytest.mark.parametrize("step", [Gathers, Grouped, Catches, Answers, Wraps])
def test_one_call_too_many_ends_the_rollout_whatever_the_step_does(play: Play, step: Any) -> None:
    tool = echo_tool(delay_s=0.01)
    tools = {"python": (tool, ToolConfig())}
    [rollout] = play(lambda *_: "x", step=step("abcdef"), tools=tools, group_size=1, max_tool_calls=2).rollouts
    assert (rollout.stop, rollout.fault) == (StopReason.CALL_LIMIT, None)
    assert [call.text for call in rollout.tool_calls] == ["a", "b"] and len(tool.calls) == 2
    assert [s.kind for s in rollout.segments[1:]] == [SegmentKind.TURN]  # the policy ended its message itself
    assert rollout.turn_rewards == (0.5 if step is Catches else None,)


def test_parallel_calls_are_recorded_in_the_order_in_which_they_were_made(play: Play) -> None:
    texts = "abcd"
    tool = echo_tool(delay_s=lambda call: 0.02 * (4 - texts.index(call.arguments["text"])))
    [rollout] = play(lambda *_: "x", step=Gathers(texts), tools={"python": (tool, ToolConfig())}, group_size=1).rollouts
    assert [call.text for call in rollout.tool_calls] == ["a", "b", "c", "d"]


def test_a_call_knows_its_task_and_how_long_it_has(play: Play, make_task: Any) -> None:
    tool, task = echo_tool(), make_task(id="which")
    play(
        lambda *_: "x", step=Gathers("a"), tasks=[task], tools={"python": (tool, ToolConfig(timeout_s=5))}, group_size=1
    )
    [call] = tool.calls
    assert call.task == task
    assert call.deadline_s == 5


def test_the_deadline_of_a_call_is_that_of_the_rollout_if_that_comes_first(play: Play) -> None:
    tool = echo_tool()
    play(lambda *_: "x", step=Gathers("a"), tools={"python": (tool, ToolConfig())}, group_size=1, deadline_s=20)
    [call] = tool.calls
    assert call.deadline_s is not None and 10 < call.deadline_s <= 20


def test_a_call_that_may_be_shared_knows_no_task(play: Play) -> None:
    tool = echo_tool(deterministic=True)
    play(lambda *_: "x", step=Gathers("a"), tools={"python": (tool, ToolConfig())}, group_size=1)
    [call] = tool.calls
    assert call.task is None
    assert call.deadline_s == ToolConfig().timeout_s


def test_metadata_is_recorded_and_read_back(play: Play, tmp_path: Path) -> None:
    tool = echo_tool(returns=ToolResult(text="x", metadata={"hits": (1, 2), "took": {"ms": 1.5}}))
    [group] = play(lambda *_: "x", step=Gathers("a"), tools={"python": (tool, ToolConfig())}, group_size=1).groups
    [call] = group.rollouts[0].tool_calls
    assert call.metadata == {"hits": [1, 2], "took": {"ms": 1.5}}
    scored = ScoredGroup(task=group.task, rollouts=tuple(ScoredRollout(rollout=r, reward=1.0) for r in group.rollouts))
    write_records(tmp_path / "r.jsonl.gz", [GroupRecord(step=1, group=scored)])
    [read] = read_records(tmp_path / "r.jsonl.gz")
    assert read.group.rollouts[0].rollout.tool_calls == (call,)


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"a": {1}}, "Object of type set "),
        ({"a": float("nan")}, "Out of range float values "),
        (["a"], "it is a list, not a mapping"),
    ],
)
def test_metadata_that_is_no_json_stops_the_run(play: Play, metadata: Any, problem: str) -> None:
    tool = echo_tool(returns=ToolResult(text="x", metadata=metadata))
    with pytest.raises(PluginError) as caught:
        play(lambda *_: "x", step=Gathers("a"), tools={"python": (tool, ToolConfig())}, group_size=1)
    assert str(caught.value).partition(": ")[0] == "tool 'python' returned metadata that is not a JSON object"
    assert problem in str(caught.value)


def run(
    encoder: Encoder, tool: EchoTool, texts: Sequence[Any], *, left_s: float | None = None, **config: Any
) -> tuple[list[ToolRecord], dict[str, float]]:
    """All calls at once, each from a rollout of its own that has `left_s` until its deadline."""

    async def main() -> tuple[list[ToolRecord], dict[str, float]]:
        runner = ToolRunner("python", tool, ToolConfig(**config), encoder, Watchdog(60))
        calls = [ToolCall(name="python", arguments={"text": t}, rollout=str(i)) for i, t in enumerate(texts)]
        ends_at = None if left_s is None else asyncio.get_running_loop().time() + left_s
        ends = await asyncio.gather(*(runner.run(call, ends_at=ends_at) for call in calls))
        await runner.close()
        return [end.record for end in ends], runner.stats.metrics("tool/python")

    return asyncio.run(main())


def once(tool: EchoTool) -> EchoTool:
    tool.schema = replace(tool.schema, idempotent=False)
    return tool


@pytest.mark.parametrize("error", [InfraError("outage"), RuntimeError("bug"), InfraError("later", retry_after_s=0.01)])
def test_a_call_that_must_not_run_twice_is_not_tried_again(encoder: Encoder, error: Exception) -> None:
    tool = once(echo_tool(error=error, fails=1))
    [outcome], metrics = run(encoder, tool, ["x"], retries=5)
    assert (outcome.status, outcome.attempts, len(tool.calls)) == (CallStatus.INFRA, 1, 1)
    assert metrics["tool/python/retries"] == metrics["tool/python/waits"] == 0


def test_a_time_out_of_a_call_that_must_not_run_twice_is_final(encoder: Encoder) -> None:
    tool = once(echo_tool(hangs=True))
    [outcome], _ = run(encoder, tool, ["x"], retries=5, timeout_s=0.05)
    assert (outcome.status, len(tool.calls)) == (CallStatus.INFRA, 1)


def test_waiting_for_a_slot_is_no_reason_not_to_run(encoder: Encoder) -> None:
    tool = once(echo_tool(delay_s=0.1))
    outcomes, _ = run(encoder, tool, ["a", "b", "c"], retries=0, timeout_s=0.2, concurrency=1)
    assert [outcome.status for outcome in outcomes] == [CallStatus.OK] * 3


def test_a_call_waits_as_long_as_the_service_asks_and_that_is_no_attempt(encoder: Encoder) -> None:
    tool = echo_tool(error=InfraError("429", retry_after_s=0.15), fails=3)
    started = time.monotonic()
    [outcome], metrics = run(encoder, tool, ["x"], retries=0, timeout_s=0.1)
    assert time.monotonic() - started >= 0.45
    assert (outcome.status, outcome.text, outcome.attempts) == (CallStatus.OK, "x", 1)
    assert outcome.wait_s >= 0.45
    assert (metrics["tool/python/retries"], metrics["tool/python/waits"]) == (0, 3)
    assert metrics["tool/python/waits_p50_s"] == metrics["tool/python/waits_p95_s"] == 0.15


def test_a_call_that_waits_leaves_its_slot_to_others(encoder: Encoder) -> None:
    class OneIsAskedToWait(EchoTool):
        async def __call__(self, call: ToolCall) -> ToolResult:
            first = not self.calls
            result = await super().__call__(call)
            if first:
                raise InfraError("429", retry_after_s=0.3)
            return result

    tool = OneIsAskedToWait(echo_tool().schema)
    run(encoder, tool, ["a", "b"], concurrency=1)
    assert [call.arguments["text"] for call in tool.calls] == ["a", "b", "a"]


def test_a_wait_that_the_rollout_has_no_time_for_is_not_begun(encoder: Encoder) -> None:
    started = time.monotonic()
    [outcome], metrics = run(encoder, echo_tool(error=InfraError("429", retry_after_s=60)), ["x"], left_s=5)
    assert time.monotonic() - started < 3
    assert outcome.status is CallStatus.INFRA
    assert outcome.text == "429 (asked to wait 60 s, which is longer than the rollout has)"
    assert metrics["tool/python/waits"] == 0


def test_the_watchdog_knows_of_the_wait(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        watchdog = Watchdog(0.1)
        tool = echo_tool(error=InfraError("429", retry_after_s=0.5), fails=1)
        runner = ToolRunner("python", tool, ToolConfig(), encoder, watchdog)
        with watchdog.watching():
            await runner.run(ToolCall(name="python", arguments={"text": "x"}, rollout="r"))

    with caplog.at_level("WARNING"):
        asyncio.run(main())
    assert any(
        "oldest wait: wait that tool:python asked for (429), rollout r for 0." in line for line in caplog.messages
    )


def test_the_console_says_why_calls_wait_and_not_for_each_of_them(
    encoder: Encoder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramet.rollout.tools.runner.REPORTED_WAIT_S", 0.2)
    tool = echo_tool(error=InfraError("the index is down", retry_after_s=0.2), fails=6)
    with caplog.at_level("WARNING"):
        run(encoder, tool, ["a", "b", "c"])
    assert caplog.messages == ["calls of tool 'python' wait (this one for 0 s): the index is down"]


class Counts(EchoTool):
    forks = "none"

    async def open(self, task: Any, seed: int) -> list[int]:
        return [0]

    async def close(self, state: list[int]) -> None: ...


def test_a_task_may_name_a_set_for_all_its_tools(play: Play, make_task: Any) -> None:
    counts = Counts(echo_tool("read").schema)
    tools = {name: (echo_tool(name), ToolConfig()) for name in ("python", "list")} | {"read": (counts, ToolConfig())}
    played = play(
        lambda task, path, turn: "<read>1</read>" if turn == 0 else "<answer>1</answer>",
        tasks=[make_task(tools=("files", "list"))],
        tools=tools,
        tool_sets={"files": ("read", "list")},
        group_size=1,
    )
    stops = set(played.engine.requests[0].sampling.stop)
    assert {"</read>", "</list>"} <= stops and "</python>" not in stops
    [call] = counts.calls
    assert call.state == [0]
