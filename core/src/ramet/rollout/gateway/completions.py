"""The dialect of `POST /v1/completions` (OpenAI): a text to continue, without a chat template.

Special tokens that are written in the text are text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ramet.rollout.gateway.chat import usage
from ramet.rollout.gateway.messages import BadRequest, TurnReply, TurnRequest, short_id
from ramet.rollout.gateway.reading import asked_sampling, check_fields, count_of, flag_of, object_of, text_of, texts_of

KNOWN = frozenset("model prompt max_tokens stop stream stream_options n best_of user".split())
REFUSED = {
    "echo": "the client has the prompt",
    "suffix": "a text is continued at its end",
    "logprobs": "token ids and log-probabilities are in the record of the run",
    "logit_bias": "the policy's own distribution is trained",
}
MAX_TOKENS = 16  # the dialect's default
FINISH = {"stop": "stop", "length": "length"}


def read(body: Mapping[str, Any]) -> TurnRequest:
    """Raises `BadRequest`."""
    check_fields(body, known=KNOWN, refused=REFUSED)
    object_of(body.get("stream_options") or {}, "stream_options")
    for name in ("n", "best_of"):
        if body.get(name) not in (None, 1):
            raise BadRequest(f"{name} must be 1: every reply is a turn of the rollout", field=name)
    return TurnRequest(
        messages=(),
        prompt=_prompt(body.get("prompt")),
        stop=texts_of(body, "stop"),
        max_tokens=count_of(body, "max_tokens") or MAX_TOKENS,
        model=text_of(body.get("model") or "", "model"),
        stream=flag_of(body, "stream"),
        asked=asked_sampling(body),
    )


def _prompt(prompt: Any) -> str:
    """The text; clients that send several at once send one as a list."""
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise BadRequest(f"prompt must be one text that is not empty, got {prompt!r:.80}", field="prompt")
    return prompt


def write(reply: TurnReply, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the response."""
    return _written(reply, [_choice(reply.text, FINISH[reply.finish])], usage=usage(reply))


def events(reply: TurnReply, body: Mapping[str, Any]) -> Iterator[bytes]:
    """The reply as server-sent events: its text, then why it ended."""
    chunks = [_written(reply, [_choice(reply.text, None)]), _written(reply, [_choice("", FINISH[reply.finish])])]
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append(_written(reply, [], usage=usage(reply)))
    for chunk in chunks:
        yield f"data: {json.dumps(chunk)}\n\n".encode()
    yield b"data: [DONE]\n\n"


def _written(reply: TurnReply, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    id = f"cmpl-{short_id(reply.id)}"
    begun = {"id": id, "object": "text_completion", "created": reply.created, "model": reply.model}
    return {**begun, "choices": choices, **more}


def _choice(text: str, finish: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
