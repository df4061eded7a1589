"""Scenarios of the package `anthropic`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from common import ADD, QUESTION, add, main

TOOLS: Any = [
    {
        "name": ADD["name"],
        "description": ADD["description"],
        "input_schema": ADD["parameters"],
        "cache_control": {"type": "ephemeral"},
    }
]
SYSTEM: Any = [{"type": "text", "text": "You calculate.", "cache_control": {"type": "ephemeral"}}]
USER: Any = {"role": "user", "content": "Hi"}


def client_of(url: str, key: str, **options: Any) -> Anthropic:
    """Replies are compared with the package's types."""
    return Anthropic(base_url=url.removesuffix("/v1"), api_key=key, _strict_response_validation=True, **options)


def results_of(message: Any) -> list[Any]:
    """The results of the calls in a message."""
    uses = [block for block in message.content if block.type == "tool_use"]
    return [
        {"type": "tool_result", "tool_use_id": use.id, "content": add(json.dumps(use.input)), "is_error": False}
        for use in uses
    ]


def messages(url: str, key: str) -> Any:
    reply = loop(client_of(url, key), [{"role": "user", "content": QUESTION}])
    return [*(block.type for block in reply.content), reply.stop_reason, reply.content[-1].text]


def loop(client: Anthropic, said: list[Any]) -> Any:
    """The last reply; `said` is then the conversation."""
    for _ in range(5):
        reply = client.messages.create(model="policy", max_tokens=500, system=SYSTEM, messages=said, tools=TOOLS)
        said.append({"role": "assistant", "content": reply.content})
        if reply.stop_reason != "tool_use":
            return reply
        said.append({"role": "user", "content": results_of(reply)})
    return None


def messages_stream(url: str, key: str) -> Any:
    """The key is in the path; the texts of the deltas are those of the message."""
    client, said = client_of(url.replace("/v1", f"/s/{key}/v1"), "none"), [{"role": "user", "content": QUESTION}]
    for _ in range(5):
        with client.messages.stream(
            model="policy", max_tokens=500, system=SYSTEM, messages=said, tools=TOOLS
        ) as stream:
            text = "".join(stream.text_stream)
            reply = stream.get_final_message()
        assert text == "".join(block.text for block in reply.content if block.type == "text")
        assert reply.usage.input_tokens > 0 and reply.usage.output_tokens > 0
        said.append({"role": "assistant", "content": reply.content})
        if reply.stop_reason != "tool_use":
            return [*(block.type for block in reply.content), reply.stop_reason, text]
        said.append({"role": "user", "content": results_of(reply)})
    return None


def events(url: str, key: str) -> Any:
    """The types of a stream's events."""
    found = []
    for event in client_of(url, key).messages.create(
        model="policy", max_tokens=500, messages=[USER], tools=TOOLS, stream=True
    ):
        found.append(event.type if event.type != "content_block_delta" else event.delta.type)
    return found


def tool_runner(url: str, key: str) -> Any:
    """The package's own loop; its first tool fails."""

    @beta_tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        if (a, b) == (3, 4):
            raise ValueError("too large")
        return str(a + b)

    runner = client_of(url, key).beta.messages.tool_runner(
        model="policy", max_tokens=500, messages=[{"role": "user", "content": QUESTION}], tools=[add]
    )
    return runner.until_done().content[-1].text


def count_tokens(url: str, key: str) -> Any:
    """A count is what the request then has; counting is no turn."""
    client, said = client_of(url, key), [{"role": "user", "content": QUESTION}]
    equal = []
    for _ in range(2):
        counted = client.messages.count_tokens(model="policy", system=SYSTEM, messages=said, tools=TOOLS)
        reply = client.messages.create(model="policy", max_tokens=500, system=SYSTEM, messages=said, tools=TOOLS)
        equal.append(counted.input_tokens == reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0))
        said += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results_of(reply)}]
    return equal


def stops(url: str, key: str) -> Any:
    """Why replies end; the conversation continues after each."""
    client, said, found = client_of(url, key), [USER], []
    for options in ({"stop_sequences": ["STOP"], "max_tokens": 50}, {"max_tokens": 3}, {"max_tokens": 50}):
        reply = client.messages.create(model="policy", messages=said, **options)
        found.append([reply.stop_reason, reply.stop_sequence, reply.content[0].text])
        said += [{"role": "assistant", "content": reply.content}, USER]
    return found


def errors(url: str, key: str) -> Any:
    """The status, class and type of each error; the session serves one turn."""
    client = client_of(url, key, max_retries=0)
    other = client_of(url, "none", max_retries=0)
    ask: Any = {"model": "policy", "max_tokens": 50, "messages": [USER]}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
    client.messages.create(**ask)
    found = []
    for request in (
        lambda: client.messages.create(**ask, extra_body={"n": 2}),
        lambda: client.messages.create(**ask, tools=TOOLS, tool_choice={"type": "any"}),
        lambda: client.messages.create(**ask, tools=[{"type": "web_search_20250305", "name": "web_search"}]),
        lambda: client.messages.create(**{**ask, "messages": [{"role": "user", "content": [image]}]}),
        lambda: client.messages.count_tokens(model="policy", messages=[]),
        lambda: client.messages.create(**ask),
        lambda: client.messages.create(**ask, stream=True),
        lambda: other.messages.create(**ask),
        lambda: other.messages.count_tokens(model="policy", messages=[USER]),
    ):
        try:
            request()
        except anthropic.APIStatusError as error:
            found.append([error.status_code, type(error).__name__, error.type, str(error.api_message)[:18]])
    return found


def retries(url: str, key: str) -> Any:
    """The engine fails once, and is twice slower than the client waits. The client repeats these requests."""
    client = client_of(url, key, max_retries=3)
    impatient = client.with_options(timeout=1.0)
    ask: Any = {"model": "policy", "max_tokens": 50}
    first = client.messages.create(**ask, messages=[{"role": "user", "content": "First?"}])
    second = impatient.messages.create(**ask, messages=[{"role": "user", "content": "Slow?"}])
    with impatient.messages.stream(**ask, messages=[{"role": "user", "content": "Slow again?"}]) as stream:
        third = stream.get_final_text()
    return [first.content[0].text, second.content[0].text, third]


def unavailable(url: str, key: str) -> Any:
    """An engine that is down, for a client that does not try again."""
    try:
        client_of(url, key, max_retries=0).messages.create(model="policy", max_tokens=50, messages=[USER])
    except anthropic.APIStatusError as error:
        return [error.status_code, type(error).__name__, error.type]
    return None


def parallel(url: str, key: str) -> Any:
    """Four sub-agents of two turns at the same time; two of them say the same."""
    client = AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key=key, _strict_response_validation=True)

    async def agent(number: int) -> str:
        said: Any = [{"role": "user", "content": f"Count to {number}."}]
        for _ in range(2):
            reply = await client.messages.create(model="policy", max_tokens=50, messages=said)
            said += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "And one more."}]
        return str(reply.content[0].text)

    async def everyone() -> list[str]:
        return await asyncio.gather(*(agent(number) for number in (1, 2, 3, 3)))

    return asyncio.run(everyone())


def compaction(url: str, key: str) -> Any:
    """The policy sums up, and a new conversation begins with its summary."""
    client, said = client_of(url, key), [{"role": "user", "content": QUESTION}]
    loop(client, said)
    summary = loop(client, [*said, {"role": "user", "content": "Sum up."}]).content[-1].text
    return loop(client, [{"role": "user", "content": f"So far: {summary}. {QUESTION}"}]).content[-1].text


def edited(url: str, key: str) -> Any:
    """The client changes what the policy answered, and asks on."""
    client, said = client_of(url, key), [{"role": "user", "content": QUESTION}]
    changed = loop(client, said).content[-1].text.replace("11", "10")
    sure = {"role": "user", "content": "Are you sure?"}
    return loop(client, [*said[:-1], {"role": "assistant", "content": changed}, sure]).content[-1].text


def agent(url: str, key: str, question: str) -> str:
    reply = loop(client_of(url, key), [{"role": "user", "content": question}])
    return str(reply.content[-1].text)


if __name__ == "__main__":
    main(
        "anthropic",
        messages,
        messages_stream,
        events,
        tool_runner,
        count_tokens,
        stops,
        errors,
        retries,
        unavailable,
        parallel,
        compaction,
        edited,
        agent=agent,
        killed=messages_stream,
    )
