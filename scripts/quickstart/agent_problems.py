"""The word problems for an agent, which has its own loop and its own tool (`openai-agents`).

The policy writes calls as the chat template has them, and the agent's program makes them. Traces have the steps and the
habit of `word_problems`; a box has the answer.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from word_problems import Problem, drawn_steps

FOLDER = Path(__file__).resolve().parent
KEYS = (
    f"model.chat_template={FOLDER / 'smollm2_tools.jinja'}",
    f"rollout_step.params.function={FOLDER / 'openai_calculator.py'}:run",
)
TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Compute a Python expression of whole numbers with +, - and *.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}


def trace_row(problem: Problem, random: Random) -> dict[str, Any]:
    """A row of SFT with the tool."""
    steps, in_the_head = drawn_steps(problem, random)
    messages: list[dict[str, Any]] = [{"role": "user", "content": problem.text}]
    for word, expression, result in steps:
        call = {"type": "function", "function": {"name": "python", "arguments": {"code": expression}}}
        messages.append({"role": "assistant", "content": f"{word}: ", "tool_calls": [call]})
        messages.append({"role": "tool", "content": str(result)})
    text = "".join(f"{word}: {expression} = " for word, expression, _ in in_the_head)
    answer = {"role": "assistant", "content": f"{text}\\boxed{{{problem.results[-1]}}}"}
    return {"messages": [*messages, answer], "tools": [TOOL]}
