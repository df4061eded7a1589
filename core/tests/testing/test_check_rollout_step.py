"""The check of rollout steps passes good ones and names what is wrong with each broken one."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ramet import (
    Insert,
    Markup,
    RolloutState,
    Sampled,
    StepContext,
    StepResult,
    StopReason,
    ToolCall,
    ToolError,
    ToolSchema,
    TracePart,
    Untrusted,
)
from ramet.rollout.config import TagsConfig
from ramet.rollout.steps.tags import Tags
from ramet.testing import check_rollout_step

CALL = re.compile(r"<echo>(.*?)</echo>")
END = StepResult(stop=StopReason.END)


class Plain:
    """A small step: one tag, one tool."""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return "Tools: " + ", ".join(tool.name for tool in tools)

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        text = (await ctx.generate(stop=["</echo>"])).text
        call = CALL.search(text)
        if call is None:
            return StepResult(stop=StopReason.ANSWER, answer=text)
        return await self.call(call[1], state, ctx)

    async def call(self, text: str, state: RolloutState, ctx: StepContext) -> StepResult:
        if state.n_tool_calls >= ctx.max_tool_calls:
            return StepResult(stop=StopReason.CALL_LIMIT)
        try:
            result = (await ctx.call_tool(ToolCall(name="echo", arguments={"text": text}))).text
        except ToolError as error:
            result = f"error: {error}"
        return StepResult(insert=(Markup(text="<result>"), Untrusted(text=result), Markup(text="</result>")))


class SingleTurn:
    """Knows no tools at all."""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return "Answer."

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        return StepResult(stop=StopReason.END, answer=(await ctx.generate()).text)


class NoLimit(Plain):
    """Leaves the limit of calls to the core."""

    async def call(self, text: str, state: RolloutState, ctx: StepContext) -> StepResult:
        return await super().call(text, replace(state, n_tool_calls=0), ctx)


class Nags(Plain):
    """At the limit it asks the policy to stop, for ever."""

    async def call(self, text: str, state: RolloutState, ctx: StepContext) -> StepResult:
        if state.n_tool_calls >= ctx.max_tool_calls:
            return StepResult(insert=(Markup(text="No more calls!"),))
        return await super().call(text, state, ctx)


class NeverEnds(Plain):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        await ctx.generate()
        return StepResult(insert=(Markup(text="Go on."),))


class Waits(Plain):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        return StepResult()


class Mutates(Plain):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        state.task.metadata["seen"] = True  # type: ignore[index]
        return await super().__call__(state, ctx)


class Forces(Plain):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        result = await super().__call__(state, ctx)
        object.__setattr__(state, "n_tool_calls", 0)
        return result


class CountsItself(Plain):
    def __init__(self) -> None:
        self.n_calls = 0

    async def call(self, text: str, state: RolloutState, ctx: StepContext) -> StepResult:
        self.n_calls += 1
        return await super().call(text, state, ctx) if self.n_calls < 20 else END


class SharesATurn(Plain):
    async def call(self, text: str, state: RolloutState, ctx: StepContext) -> StepResult:
        self.state = state
        await ctx.call_tool(ToolCall(name="echo", arguments={"text": text}))
        return StepResult(insert=(Untrusted(text=f"forged mistake-of-the-model {self.state.rollout}"),))


class TrustsResults(Plain):
    async def call(self, text: str, state: RolloutState, ctx: StepContext) -> StepResult:
        result = await super().call(text, state, ctx)
        return StepResult(insert=tuple(Markup(text=part.text) for part in result.insert), stop=result.stop)


class DropsResults(Plain):
    async def call(self, text: str, state: RolloutState, ctx: StepContext) -> StepResult:
        result = await super().call(text, state, ctx)
        return StepResult(stop=result.stop)


class ReadsResults(Plain):
    """Looks for calls in the whole response."""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        text = state.response + (await ctx.generate(stop=["</echo>"])).text
        calls = CALL.findall(text)
        return await self.call(calls[-1], state, ctx) if calls else END


class LetsToolErrorsPass(Plain):
    async def call(self, text: str, state: RolloutState, ctx: StepContext) -> StepResult:
        if state.n_tool_calls >= ctx.max_tool_calls:
            return END
        result = await ctx.call_tool(ToolCall(name="echo", arguments={"text": text}))
        return StepResult(insert=(Untrusted(text=result.text),))


class SwallowsOutages(Plain):
    async def call(self, text: str, state: RolloutState, ctx: StepContext) -> StepResult:
        try:
            return await super().call(text, state, ctx)
        except Exception:
            return StepResult(insert=(Untrusted(text="no result"),))


class GeneratesTwice(Plain):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        await ctx.generate()
        return await super().__call__(state, ctx)


class Unusual(Plain):
    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        text = (await ctx.generate()).text
        return await self.call(text, state, ctx) if text.startswith("CALL ") else END


class Reader(Plain):
    """Reads traces too."""

    def result(self, text: str) -> Sequence[Insert]:
        return (Markup(text="<result>"), Untrusted(text=text), Markup(text="</result>"))

    def read(self, text: str, tools: Sequence[str]) -> Sequence[TracePart]:
        before, opening, rest = text.partition("<result>")
        body, closing, after = rest.partition("</result>")
        inserted = (Markup(text=opening), Untrusted(text=body), Markup(text=closing))
        return [Sampled(text=before), *inserted, *(self.read(after, tools) if after else [])]


class ReadsOtherFormat(Reader):
    def result(self, text: str) -> Sequence[Insert]:
        return (Markup(text="<output>"), Untrusted(text=text), Markup(text="</output>"))


class LosesText(Reader):
    def read(self, text: str, tools: Sequence[str]) -> Sequence[TracePart]:
        return [part for part in super().read(text, tools) if not isinstance(part, Markup)]


class TrainsResults(Reader):
    def read(self, text: str, tools: Sequence[str]) -> Sequence[TracePart]:
        return [Sampled(text=text)]


@pytest.mark.parametrize("good", [Plain, SingleTurn, Reader, NoLimit])
def test_a_good_step_passes(good: type) -> None:
    check_rollout_step(good())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Nags, "has not ended after 7 turns with max_tool_calls=3"),
        (NeverEnds, "has not ended after 7 turns"),
        (Waits, "neither calls ctx.generate nor stops"),
        (Mutates, "changed its state"),
        (Forces, "changed its state"),
        (CountsItself, "run twice, went two ways|disturb each other"),
        (SharesATurn, "disturb each other"),
        (TrustsResults, "inserted as Markup"),
        (DropsResults, "result is not inserted"),
        (ReadsResults, "reads calls or answers from a tool result"),
        (LetsToolErrorsPass, "a ToolError escapes"),
        (SwallowsOutages, "InfraError of a tool is swallowed"),
        (GeneratesTwice, "generate is called twice"),
        (Unusual, "pass call="),
        (ReadsOtherFormat, "another format than rollouts use"),
        (LosesText, "do not join"),
        (TrainsResults, "must not be trained"),
    ],
)
def test_a_broken_step_is_caught(broken: type, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_rollout_step(broken())
    assert re.search(message, str(caught.value))


def test_a_step_with_a_format_of_its_own_is_given_the_call() -> None:
    check_rollout_step(Unusual(), call="CALL hello")


def test_a_step_that_blocks_the_event_loop_is_caught() -> None:
    class Blocks(Tags):
        async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
            time.sleep(0.6)
            return await super().__call__(state, ctx)

    with pytest.raises(AssertionError, match=r"^blocks the event loop .* in __call__ \(core/tests/testing/"):
        check_rollout_step(Blocks(TagsConfig()))
