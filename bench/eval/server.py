"""A server that speaks as `vllm serve` does and computes nothing: one tool call, then an answer.

    python bench/eval/server.py PORT IDS.json

`IDS.json` holds the token ids of both replies and of an end of sequence. A prompt, or a chat, that holds a result is
answered, any other one gets the call.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

CALL, ANSWER = "<search>the weather</search>", "<answer>sunny</answer>"
LONGEST_QUESTION = 200  # tokens; a prompt that is longer has the tool's result


async def completions(request: web.Request) -> web.Response:
    body = await request.json()
    ids: dict[str, list[int]] = request.app["ids"]
    called = len(body["prompt"]) > LONGEST_QUESTION
    text, stop = (ANSWER, "</answer>") if called else (CALL, "</search>")
    found = ids["answer"] if called else ids["call"]
    choice = {"index": 0, "text": text, "finish_reason": "stop", "stop_reason": stop, "token_ids": found}
    return web.json_response({"object": "text_completion", "choices": [choice], "usage": usage(body["prompt"], found)})


async def chat(request: web.Request) -> web.Response:
    body = await request.json()
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    if not any(one["role"] == "tool" for one in body["messages"]):
        function = {"name": "search", "arguments": json.dumps({"query": "the weather"})}
        call = {"id": "call_1", "type": "function", "function": function}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    body = {"id": "chat", "object": "chat.completion", "created": 0, "model": "tiny", "choices": [choice]}
    return web.json_response({**body, "usage": usage(range(50), range(20))})


def usage(asked: Any, said: Any) -> dict[str, int]:
    n, m = len(asked), len(said)
    return {"prompt_tokens": n, "completion_tokens": m, "total_tokens": n + m}


async def models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model"}]})


def main() -> None:
    port, ids = int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    app = web.Application(client_max_size=64 << 20)
    app["ids"] = ids
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main()
