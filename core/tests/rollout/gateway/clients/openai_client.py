"""Scenarios of the package `openai`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from common import ADD, QUESTION, add, main
from openai import AsyncOpenAI, OpenAI

CHAT_TOOLS: Any = [{"type": "function", "function": ADD}]
TOOLS: Any = [{"type": "function", "strict": True, **ADD}]
STRICT: Any = {"_strict_response_validation": True}  # replies are compared with the package's types


def chat(url: str, key: str, question: str = QUESTION) -> Any:
    client, messages = OpenAI(base_url=url, api_key=key, **STRICT), chat_start(question)
    return chat_loop(client, messages)


def chat_loop(client: OpenAI, messages: list[Any]) -> Any:
    """The last text; `messages` are then the conversation."""
    for _ in range(5):
        reply = client.chat.completions.create(model="policy", messages=messages, tools=CHAT_TOOLS)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": add(call.function.arguments)})
    return None


def chat_stream(url: str, key: str) -> Any:
    """The key is in the path: for clients that cannot set one."""
    client, messages = OpenAI(base_url=url.replace("/v1", f"/s/{key}/v1"), api_key="none", **STRICT), chat_start()
    for _ in range(5):
        text, calls, usage = "", {}, None
        for chunk in client.chat.completions.create(
            model="policy", messages=messages, tools=CHAT_TOOLS, stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                calls |= {call.index: call for call in choice.delta.tool_calls or []}
        assert usage is not None and usage.completion_tokens > 0
        if not calls:
            return text
        messages.append({"role": "assistant", "content": text, "tool_calls": [c.model_dump() for c in calls.values()]})
        for call in calls.values():
            messages.append({"role": "tool", "tool_call_id": call.id, "content": add(call.function.arguments)})
    return None


def chat_start(question: str = QUESTION) -> list[Any]:
    return [{"role": "system", "content": "You calculate."}, {"role": "user", "content": question}]


def responses(url: str, key: str) -> Any:
    client, items = OpenAI(base_url=url, api_key=key, **STRICT), [{"role": "user", "content": QUESTION}]
    for _ in range(5):
        reply = client.responses.create(
            model="policy", instructions="You calculate.", input=items, tools=TOOLS, store=False
        )
        items += reply.output
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return reply.output_text
        items += [output_of(call) for call in calls]
    return None


def responses_stream(url: str, key: str) -> Any:
    client, items = OpenAI(base_url=url, api_key=key, **STRICT), [{"role": "user", "content": QUESTION}]
    for _ in range(5):
        deltas = ""
        with client.responses.stream(model="policy", instructions="You calculate.", input=items, tools=TOOLS) as stream:
            for event in stream:
                deltas += event.delta if event.type == "response.output_text.delta" else ""
            reply = stream.get_final_response()
        assert reply.status == "completed" and reply.output_text == deltas and reply.usage.output_tokens > 0
        items += [item.to_dict() for item in reply.output]
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return deltas
        items += [output_of(call) for call in calls]
    return None


def responses_previous(url: str, key: str) -> Any:
    client, items, previous = OpenAI(base_url=url, api_key=key, **STRICT), QUESTION, None
    for _ in range(5):
        reply = client.responses.create(
            model="policy", instructions="You calculate.", input=items, tools=TOOLS, previous_response_id=previous
        )
        previous = reply.id
        assert client.responses.retrieve(previous).output == reply.output
        if not (calls := [item for item in reply.output if item.type == "function_call"]):
            return reply.output_text
        items = [output_of(call) for call in calls]
    return None


def output_of(call: Any) -> Any:
    return {"type": "function_call_output", "call_id": call.call_id, "output": add(call.arguments)}


def errors(url: str, key: str) -> Any:
    """The status, class and fields of each error; the session serves one turn."""
    client, user = OpenAI(base_url=url, api_key=key, max_retries=0, **STRICT), [{"role": "user", "content": "Hi"}]
    create, respond = client.chat.completions.create, client.responses.create
    client.responses.create(model="policy", input="Hi")
    other = OpenAI(base_url=url, api_key="none", max_retries=0)
    found = []
    for request in (
        lambda: create(model="policy", messages=user, n=2),
        lambda: create(model="policy", messages=user, logit_bias={"1": 5}),
        lambda: respond(model="policy", input="Hi", text={"format": {"type": "json_object"}}),
        lambda: respond(model="policy", input="Hi", tools=[{"type": "web_search"}]),
        lambda: respond(model="policy", input="Hi", previous_response_id="resp_other"),
        lambda: client.responses.retrieve("resp_other"),
        lambda: create(model="policy", messages=user),
        lambda: respond(model="policy", input="Hi", stream=True),
        lambda: other.responses.create(model="policy", input="Hi"),
        lambda: other.chat.completions.create(model="policy", messages=user, stream=True),
    ):
        try:
            request()
        except openai.APIStatusError as error:
            found.append([error.status_code, type(error).__name__, error.param, error.code])
    return found


def retries(url: str, key: str) -> Any:
    """The engine fails once, and is once slower than the client waits. Both requests are repeated by the client."""
    client = OpenAI(base_url=url, api_key=key, max_retries=3, **STRICT)
    first = client.responses.create(model="policy", input="First?")
    user: Any = [{"role": "user", "content": "Slow?"}]
    second = client.with_options(timeout=1.0).chat.completions.create(model="policy", messages=user)
    stream = client.with_options(timeout=1.0).responses.create(model="policy", input="Slow again?", stream=True)
    third = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    return [first.output_text, second.choices[0].message.content, third]


def parallel(url: str, key: str) -> Any:
    """Four sub-agents of two turns at the same time, in both dialects; two of them say the same."""
    client = AsyncOpenAI(base_url=url, api_key=key, **STRICT)

    async def agent(number: int) -> str:
        items: Any = [{"role": "user", "content": f"Count to {number}."}]
        for _ in range(2):
            if number % 2:
                reply = await client.responses.create(model="policy", input=items)
                text = reply.output_text
            else:
                chat = await client.chat.completions.create(model="policy", messages=items)
                text = str(chat.choices[0].message.content)
            items += [{"role": "assistant", "content": text}, {"role": "user", "content": "And one more."}]
        return json.dumps(text)

    async def everyone() -> list[str]:
        return await asyncio.gather(*(agent(number) for number in (1, 2, 3, 3)))

    return asyncio.run(everyone())


def completions(url: str, key: str) -> Any:
    """An agent that keeps its conversation as one text."""
    client, text = OpenAI(base_url=url, api_key=key), "Question: 1?\nThought:"
    ask: Any = {"model": "policy", "max_tokens": 50, "stop": ["\nObservation:"]}
    for _ in range(2):
        choice = client.completions.create(**ask, prompt=text).choices[0]
        text += f"{choice.text}\nObservation: one\nThought:"
    chunks = [chunk.choices[0] for chunk in client.completions.create(**ask, prompt=text, stream=True)]
    return ["".join(choice.text for choice in chunks), chunks[-1].finish_reason]


def compaction(url: str, key: str) -> Any:
    """The policy sums up, and a new conversation begins with its summary."""
    client, messages = OpenAI(base_url=url, api_key=key, **STRICT), chat_start()
    chat_loop(client, messages)
    summary = chat_loop(client, [*messages, {"role": "user", "content": "Sum up."}])
    return chat_loop(client, chat_start(f"So far: {summary}. {QUESTION}"))


def edited(url: str, key: str) -> Any:
    """The client changes what the policy answered, and asks on."""
    client, messages = OpenAI(base_url=url, api_key=key, **STRICT), chat_start()
    changed = chat_loop(client, messages).replace("11", "10")
    sure: Any = {"role": "user", "content": "Are you sure?"}
    return chat_loop(client, [*messages[:-1], {"role": "assistant", "content": changed}, sure])


if __name__ == "__main__":
    main(
        "openai",
        chat,
        chat_stream,
        responses,
        responses_stream,
        responses_previous,
        errors,
        retries,
        parallel,
        completions,
        compaction,
        edited,
        agent=chat,
        killed=chat_stream,
    )
