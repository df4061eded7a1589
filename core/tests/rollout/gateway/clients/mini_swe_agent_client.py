"""Scenarios of `mini-swe-agent`, with its three models: calls in chat and in responses, and commands in the text."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from tempfile import mkdtemp
from typing import Any

os.environ |= {
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_GLOBAL_CONFIG_DIR": mkdtemp(),
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}

import litellm
from common import QUESTION, main
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_response_model import LitellmResponseModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

litellm.suppress_debug_info = True


class Changing(DefaultAgent):
    """An agent whose history is changed before its second request."""

    change: Any = None

    def query(self) -> dict[str, Any]:
        if self.n_calls == 1:
            self.messages = self.change(self.messages)
        return super().query()


def agent_of(url: str, key: str, model: Any = LitellmModel, kind: Any = DefaultAgent, **options: Any) -> Any:
    options = {"api_base": url, "api_key": key, **options}
    model = model(model_name="openai/policy", model_kwargs=options, cost_tracking="ignore_errors")
    environment = LocalEnvironment(timeout=20)
    return kind(model, environment, system_template="You use bash.", instance_template="{{task}}", step_limit=5)


def tools(url: str, key: str, question: str = QUESTION) -> str:
    return str(agent_of(url, key).run(question)["submission"]).strip()


def text(url: str, key: str) -> str:
    return str(agent_of(url, key, LitellmTextbasedModel).run(QUESTION)["submission"]).strip()


def responses(url: str, key: str) -> str:
    return str(agent_of(url, key, LitellmResponseModel).run(QUESTION)["submission"]).strip()


def parallel(url: str, key: str) -> Any:
    """Two agents at the same time, in threads."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda number: tools(url, key, f"{number}: {QUESTION}"), (1, 2)))


def retries(url: str, key: str) -> Any:
    """The engine fails once, and is once slower than the client waits. Both requests are repeated by litellm."""
    options = {"max_retries": 3, "timeout": 1.0}
    return [agent_of(url, key, **options).run(question)["submission"].strip() for question in ("First?", "Slow?")]


def compaction(url: str, key: str) -> str:
    """Calls and results are replaced by a text that has the results."""

    def compact(messages: list[Any]) -> list[Any]:
        return [messages[0], {"role": "user", "content": f"So far: 3 and 7. {QUESTION}"}]

    agent = agent_of(url, key, kind=Changing)
    agent.change = compact
    return str(agent.run(QUESTION)["submission"]).strip()


def edited(url: str, key: str) -> str:
    """What the policy said beside its calls is changed."""

    def edit(messages: list[Any]) -> list[Any]:
        return [{**said, "content": "I sum."} if said["role"] == "assistant" else said for said in messages]

    agent = agent_of(url, key, kind=Changing)
    agent.change = edit
    return str(agent.run(QUESTION)["submission"]).strip()


async def run(task: Any, ctx: Any) -> str:
    """The agent as `rollout_step=function`."""
    return await asyncio.to_thread(tools, ctx.base_url, ctx.key, task.question)


if __name__ == "__main__":
    main("mini-swe-agent", tools, text, responses, parallel, retries, compaction, edited, agent=tools, killed=tools)
