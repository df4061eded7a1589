"""An ordinary program of the package `openai-agents`: it answers word problems, and computes with a tool of its own.

The recipe `quickstart_smollm2_agent` trains it as it is.
"""

import ast
import operator
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

CLIENT = AsyncOpenAI(api_key="set in each run")
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
set_tracing_disabled(True)


@function_tool
def python(code: str) -> str:
    """Compute a Python expression of whole numbers with +, - and *."""
    return str(value(ast.parse(code.strip(), mode="eval").body))


def value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return int(OPERATIONS[type(op)](value(left), value(right)))
    raise ValueError(f"not a whole number, +, - or *: {ast.unparse(node)}")


async def run(task: Any, ctx: Any) -> str:
    """The entry point for Ramet: the client gets the address and the key of this rollout."""
    client = CLIENT.with_options(base_url=ctx.base_url, api_key=ctx.key)
    solver = Agent(name="solver", model=OpenAIChatCompletionsModel(ctx.model, client), tools=[python])
    return str((await Runner.run(solver, task.question, max_turns=6)).final_output)
