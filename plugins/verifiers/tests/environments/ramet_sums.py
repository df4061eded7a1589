"""An environment of verifiers for tests: sums, with a program of its own that has a tool and asks twice.

The task set has a task for each of `faults`, whose program or scoring fails as real ones do.
"""

from __future__ import annotations

import json
import urllib.request

import verifiers.v1 as vf
from openai import AsyncOpenAI

NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
ADD = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": NUMBERS}},
}


class SumData(vf.TaskData):
    total: int


class SumConfig(vf.TasksetConfig):
    first: int = 0
    faults: tuple[str, ...] = ("", "")


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        if self.data.description == "scoring":
            raise OSError("the scorer's server is away")
        if self.data.description == "parse":
            return float(trace.last_reply)
        return float(trace.last_reply.split()[-1:] == [str(self.data.total)])

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 20)

    @vf.metric
    async def words(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply.split()))


class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> list[SumTask]:
        print("loading")  # to standard output, where the worker's messages are
        return [
            SumTask(
                SumData(prompt=f"{n} + 1 = ?", system_prompt="Add.", total=n + 1, description=fault or None),
                self.config.task,
            )
            for n, fault in enumerate(self.config.faults, self.config.first)
        ]


class SumHarnessConfig(vf.HarnessConfig):
    executes_code: bool = False


class SumHarness(vf.Harness[SumHarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    NEEDS_CONTAINER = False

    def __init__(self, config: SumHarnessConfig) -> None:
        super().__init__(config)
        self.EXECUTES_CODE = config.executes_code

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> vf.ProgramResult:
        if data.description == "program":
            return vf.ProgramResult(exit_code=3, stdout="", stderr="a bug of the program")
        client = AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0)
        messages = [{"role": "system", "content": data.system_prompt}, {"role": "user", "content": data.prompt}]
        asked = 0
        while asked < (100 if data.description == "endless" else 2):
            reply = await client.chat.completions.create(model=ctx.model, messages=messages, tools=[ADD])
            said = reply.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            for call in said.tool_calls or ():
                total = sum(json.loads(call.function.arguments).values())
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})
            if data.description == "fetch":
                urllib.request.urlopen(said.content)
            if not said.tool_calls:
                asked += 1
                messages.append({"role": "user", "content": "Are you sure?"})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["SumHarness", "Sums"]
