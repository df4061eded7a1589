"""A server that speaks as OpenAI-compatible ones do, in this process: for tests of judges, engines and summarisers."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RawReply:
    """A reply instead of a completion: an error, a page of HTML, half a reply."""

    status: int = 200
    body: bytes | str = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    promised: int | None = None  # the Content-Length that is sent; null: the body's own
    reset: bool = False  # nothing is sent, and the connection is reset


Answer = Callable[[dict[str, Any]], "str | RawReply"]


class OpenAIServer:
    """`with OpenAIServer(answer) as server: … server.url`. `answer` gets the body of each request, in a thread.

    A text becomes a completion, of a chat or (`/completions`) of a prompt, whose tokens are counted as words. With
    `encode`, the token ids of a text, prompts are completed as vLLM does: with `token_ids` for who asks for them, and
    up to the first stop string. `requests`: the bodies in order of arrival. `keys`: the keys that were sent.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        models: tuple[str, ...] = ("tiny",),
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        self.answer, self.models, self.encode = answer, models, encode
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = True
        self._http.ours = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> OpenAIServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet a reply: two would wait for each other's acknowledgement
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        ours = self._ours()
        exists = self.path == "/v1/models"
        listed = {"object": "list", "data": [{"id": model, "object": "model"} for model in ours.models]}
        self._send(
            RawReply(status=200 if exists else 404, body=json.dumps(listed if exists else {"error": "not found"}))
        )

    def do_POST(self) -> None:
        ours = self._ours()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ours.requests.append(body)
        bearer = self.headers.get("Authorization")
        ours.keys.append(bearer.removeprefix("Bearer ") if bearer else None)
        answer = ours.answer(body)
        if isinstance(answer, str):
            reply = completion(body, answer) if "messages" in body else text_completion(body, answer, ours.encode)
            answer = RawReply(body=json.dumps(reply))
        self._send(answer)

    def _send(self, reply: RawReply) -> None:
        if reply.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        body = reply.body.encode() if isinstance(reply.body, str) else reply.body
        try:
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if reply.promised is None else reply.promised))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the client gave up
            self.close_connection = True
        if reply.promised not in (None, len(body)):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _ours(self) -> OpenAIServer:
        ours: OpenAIServer = self.server.ours  # type: ignore[attr-defined]
        return ours


def completion(body: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A chat completion of this text."""
    asked = sum(len(str(message["content"]).split()) for message in body["messages"])
    said = len(text.split())
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "model": body.get("model", ""),
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said},
    }


def text_completion(
    body: Mapping[str, Any], text: str, encode: Callable[[str], Sequence[int]] | None = None
) -> dict[str, Any]:
    """A completion of a prompt with this text, up to the first stop string in it."""
    ends = [(text.find(stop) + len(stop), stop) for stop in body.get("stop") or () if stop in text]
    end, stop = min(ends, default=(len(text), None))
    text = text[:end]
    prompt = body["prompt"]
    asked = len(prompt if isinstance(prompt, list) else prompt.split())
    ids = [*(text.split() if encode is None else encode(text))]
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "text": text}
    if encode is not None:
        ids += [] if stop is not None else list(body.get("stop_token_ids") or ())[:1]
        choice |= {"stop_reason": stop, "token_ids": ids} if body.get("return_token_ids") else {"stop_reason": stop}
    return {
        "id": "cmpl-0",
        "object": "text_completion",
        "model": body.get("model", ""),
        "choices": [choice],
        "usage": {"prompt_tokens": asked, "completion_tokens": len(ids), "total_tokens": asked + len(ids)},
    }
