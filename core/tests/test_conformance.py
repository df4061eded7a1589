"""What the core itself registers keeps the contract."""

from __future__ import annotations

import sys

import pytest

from ramet import AgentContext, AgentResult, Task
from ramet.testing import check_plugin

ASKS = """
import json, os, sys, urllib.request
body = {"messages": [{"role": "user", "content": sys.argv[1]}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as reply:
    print(json.load(reply)["choices"][0]["message"]["content"])
"""


async def asks(task: Task, ctx: AgentContext) -> AgentResult:
    """Runs as the agent `function`."""
    from aiohttp import ClientSession

    body = {"messages": [{"role": "user", "content": task.question}]}
    async with ClientSession(headers={"Authorization": f"Bearer {ctx.key}"}, raise_for_status=True) as http:
        async with http.post(f"{ctx.base_url}/chat/completions", json=body) as reply:
            return AgentResult(answer=(await reply.json())["choices"][0]["message"]["content"])


def test_the_built_in_components_conform() -> None:
    skip = {
        "rewards.environment": "it sums turn rewards, which the kit's rollouts lack",
        "rollout_step.external": "programs elsewhere run it; core/tests/rollout/agents/test_external.py has one",
        "tools.from_row": "it answers calls of a task's own tools; core/tests/rollout/test_from_row.py",
        "tools.mcp": "it needs a server; core/tests/rollout/test_mcp.py has one",
    }
    options = {
        "branch_policy.shuffled": {"policy": "token_entropy"},
        "rollout_step.function": {"function": f"{__name__}:asks", "forks": "replay"},
        "rollout_step.command": {"argv": [sys.executable, "-c", ASKS, "{question}"], "forks": "replay"},
    }
    pytest.importorskip("aiohttp", reason="ramet[openai] is not installed")
    checked = check_plugin("core", skip=skip, options=options)
    assert {"rollout_step.tags", "rollout_step.command", "rollout_step.function"} <= set(checked)
    assert {"branch_policy.random", "advantage.grpo", "policy_loss.ppo_clip"} <= set(checked)
