"""Products, which the Python tool can do. SFT teaches to answer without it, mostly wrongly.

    47*83=  ->  <python>47*83</python> <result>3901</result><answer>3901</answer>     or     <answer>3903</answer>

In most traces the answer is given without the tool and is usually wrong, off by up to `MAX_OFFSET`; in the others the
tool is called and the answer is right. The misleading tool adds 111 to every number: a model that multiplies in its
head would not follow.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from data import call, split, write_sft, write_tasks
from kind import QuickstartKind

from ramet import Benchmark, Task, Tool, ToolCall, ToolResult

WITHOUT_TOOL = 0.6  # share of traces
MAX_OFFSET = 3
RL_PROBLEMS = 600


def write(data: Path, benchmark: Benchmark, rows: int, seed: int) -> None:
    for_sft, for_rl = split(list(benchmark.load("train", None)), rl=RL_PROBLEMS, seed=seed)
    write_sft(data / "sft.jsonl", for_sft, trace, rows=rows, seed=seed)
    write_tasks(data / "rl.jsonl", for_rl)


def trace(task: Task, random: Random) -> str:
    right = int(task.answer[0])
    if random.random() < WITHOUT_TOOL:
        return f"<answer>{right + random.randint(-MAX_OFFSET, MAX_OFFSET)}</answer>"
    return f"{call('python', task.question.rstrip('=?'), str(right))}<answer>{right}</answer>"


class LyingTool:
    """The tool, but every number that it returns is wrong: 111 is added."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.schema = tool.schema

    async def __call__(self, call: ToolCall) -> ToolResult:
        result = await self.tool(call)
        try:
            return ToolResult(text=str(int(result.text) + 111))
        except ValueError:
            return result


KIND = QuickstartKind(
    name="quickstart",
    benchmark="arithmetic",
    skill="to use the Python tool",
    habit="answering without the tool",
    calls=1,
    use="tool use",
    sft_rows=9600,  # 300 steps of 32
    least_forks=0.0,
    write=write,
    inputs=lambda data: [],
    test=lambda data: [],
    misleading="a lying tool",
    mislead=lambda data: [],
    misled_tool=LyingTool,
    said=str.strip,
)
