"""The conversations that a session replied to, by which the ids in front of the next reply are found.

Where a request's messages continue one, its recorded ids continue, and only what follows is rendered: the policy is
never conditioned on a second tokenisation of its own text. Any other request is rendered in full.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from ramet.errors import ConfigError
from ramet.rollout.gateway.messages import BadRequest, Digest, Said, TurnRequest
from ramet.rollout.gateway.threads import SessionThreads, SessionTurn
from ramet.types import Insert, Message

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

History: TypeAlias = Literal["keep", "template"]


class Conversations:
    """Conversations up to each reply of a session."""

    def __init__(self, encoder: Encoder, threads: SessionThreads, history: History) -> None:
        """`history` template: requests are rendered in full, as the chat template shows earlier turns."""
        self._encoder, self._threads, self._history = encoder, threads, history
        self._known: dict[Digest, list[SessionTurn]] = {}  # up to a reply -> the turns that gave it
        # The same without a chat template, and how many tokens.
        self._texts: dict[str, list[tuple[SessionTurn, int]]] = {}

    def until(self, turn: int, threads: SessionThreads) -> Conversations:
        """The conversations that had their replies before a turn, for a fork with these threads."""
        fork = Conversations(self._encoder, threads, self._history)
        for digest, turns in self._known.items():
            if known := [earlier for earlier in turns if earlier.number < turn]:
                fork._known[digest] = known
        for text, ends in self._texts.items():
            if begun := [end for end in ends if end[0].number < turn]:
                fork._texts[text] = begun
        return fork

    def add(self, request: TurnRequest, digest: Digest, turn: SessionTurn, said: Said, text: str, ended: bool) -> None:
        """Note the reply to a request: a message, or `text` after a prompt without a chat template. `ended`: an end of
        sequence was sampled after it.
        """
        if request.prompt is None:
            self._known.setdefault(_and_then(digest, said), []).append(turn)
        else:
            self._texts.setdefault(request.prompt + text, []).append((turn, turn.end - ended))

    def prompt(self, request: TurnRequest, digests: Sequence[Digest]) -> array[int]:
        """The ids in front of the reply to a request.

        Raises `BadRequest` for messages that the chat template does not take.
        """
        if request.prompt is not None:
            return self._continued(request.prompt)
        messages, known = request.messages, 0
        if self._history == "keep":
            known = next((n for n in range(len(messages) - 1, 0, -1) if digests[n] in self._known), 0)
        rest = messages[known:]
        if known and all(said.role != "assistant" for said in rest):
            turn = self._known[digests[known]][-1]
            path = self._threads.threads[turn.thread].path[: turn.end]
            if (parts := self._suffix(rest, path)) is not None:
                for part in parts:
                    path.extend(self._encoder.insert(part))
                return path
        try:
            ids = self._encoder.prompt([self._message(said) for said in messages], request.tools, foreign=True)
        except ConfigError as error:
            raise BadRequest(f"the model's chat template does not take these messages: {error}") from error
        self._check_complete(messages, ids)
        return ids

    def _check_complete(self, messages: Sequence[Said], ids: array[int]) -> None:
        """Raises `BadRequest` for system messages after the first one that the chat template leaves out, as some do."""
        later = [said.text.strip() for said in messages[1:] if said.role == "system"]
        text = self._encoder.decode(ids) if later else ""
        if not all(said in text for said in later):
            raise BadRequest("the model's chat template leaves out system messages that are not the first message")

    def _continued(self, prompt: str) -> array[int]:
        """The ids of a text: those recorded for the longest text that it continues, and of the rest as it is.

        An end of sequence that was sampled is not in the text, and so not in the ids.
        """
        known = max((text for text in self._texts if prompt.startswith(text)), key=len, default="")
        rest = self._encoder.untrusted(prompt[len(known) :])
        if not known:
            return rest
        turn, n_tokens = self._texts[known][-1]
        return self._threads.threads[turn.thread].path[:n_tokens] + rest

    def _suffix(self, rest: Sequence[Said], path: array[int]) -> Sequence[Insert] | None:
        """The template's text for what follows a reply; None for roles that it takes only after all messages."""
        try:
            return self._encoder.suffix([self._message(said) for said in rest], after=path[-1])
        except ValueError:
            return None

    def _message(self, said: Said) -> Message:
        """The message for the chat template. Calls that were not sampled here have the template's own form."""
        if not said.calls:
            return Message(role=said.role, content=said.text)
        calls = [{"name": call.name, "arguments": call.parsed} for call in said.calls]
        return Message(role=said.role, content=self._encoder.template.content(said.text, calls))


def digests_of(request: TurnRequest) -> list[Digest]:
    """Digests, the last of which requests share that ask for the same: messages and tools, or a text to continue.

    Messages have one for each beginning of the conversation, the empty one first.
    """
    if request.prompt is not None:
        return [hashlib.blake2b(f"prompt:{request.prompt}".encode("utf-8", "replace")).digest()]
    tools = repr([tool.function for tool in request.tools])
    digests = [hashlib.blake2b(tools.encode("utf-8", "replace")).digest()]
    for said in request.messages:
        digests.append(_and_then(digests[-1], said))
    return digests


def _and_then(digest: Digest, said: Said) -> Digest:
    """The digest of a conversation that continues with this message."""
    return hashlib.blake2b(digest + repr(said.key).encode("utf-8", "replace")).digest()
