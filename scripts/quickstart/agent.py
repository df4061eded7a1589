"""The questions of the search quickstart for an agent, which has its own loop and its own tool (`openai-agents`).

The policy writes calls as chat templates have them, and the agent's program makes them. After the first page most
traces of SFT answer with the boss that they see, which is always wrong.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from data import split, write_tasks
from kind import QuickstartKind
from search import HABIT, RL_QUESTIONS, TEST_QUESTIONS, Page, Pages, make_pages, permuted, question

from ramet import Benchmark, Task

AGENT = Path(__file__).with_name("openai_agent.py")
TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find the page of a person.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
# Only the names of the tools: a byte-level model has no room for their schemas.
CHAT_TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool['function']['name'] }}{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'tool' %}<result>{{ message['content'] }}</result>"
    "{% else %}{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>{{ {'name': call['function']['name'], 'arguments': "
    "call['function']['arguments']} | tojson }}</tool_call>{% endfor %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write(data: Path, benchmark: Benchmark, rows: int, seed: int) -> None:
    """The pages, true and permuted, and the questions: the benchmark's are the same for every seed."""
    pages = make_pages()
    for name, those in (("pages.json", pages), ("permuted.json", permuted(pages))):
        texts = {page.name: page.text for page in those.values()}
        (data / name).write_text(json.dumps(texts), encoding="utf-8")
    tasks = [question(pages, name) for name in pages]
    for_sft, for_rl = split(tasks[TEST_QUESTIONS:], rl=RL_QUESTIONS, seed=seed)
    write_tasks(data / "test.jsonl", tasks[:TEST_QUESTIONS])
    write_tasks(data / "rl.jsonl", for_rl)
    random = Random(f"traces:{seed}")
    with (data / "sft.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(rows):
            row = {"messages": trace(pages, random.choice(for_sft), random), "tools": [TOOL]}
            file.write(json.dumps(row) + "\n")


def trace(pages: Pages, task: Task, random: Random) -> list[dict[str, Any]]:
    page = pages[task.metadata["name"]]
    messages = [{"role": "user", "content": task.question}, *_search(page)]
    if random.random() >= HABIT:
        page = pages[page.boss]
        messages += _search(page)
    return [*messages, {"role": "assistant", "content": page.boss}]


def _search(page: Page) -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": "search", "arguments": {"name": page.name}}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": page.text}]


def _pages(file: str, data: Path) -> list[str]:
    return [f"rollout_step.params.function={AGENT}:run", f"rollout_step.params.arguments.pages={data / file}"]


KIND = QuickstartKind(
    name="quickstart_agent",
    benchmark="files",
    skill="to search until the answer is found",
    habit="stopping after the first page",
    calls=2,
    use="two searches",
    sizes={
        "hidden": 96,
        "layers": 3,
        "intermediate": 192,
        "tags": ("tool_call", "result"),
        "chat_template": CHAT_TEMPLATE,
    },
    sft_rows=9600,  # 600 steps of 16
    least_forks=1.0,
    write=write,
    inputs=partial(_pages, "pages.json"),
    test=lambda data: [f"benchmarks.files.params.paths=[{data / 'test.jsonl'}]"],
    misleading="permuted pages",
    mislead=partial(_pages, "permuted.json"),
    said=lambda result: result.split()[-1],
)
