"""A conversation over several questions: its messages become the prompt of the next question's task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from ramet.play.screen import HEADER, Screen
from ramet.types import Generation, Message, Segment


class Talk(Screen):
    """A screen that keeps its texts as messages: the model's texts, and the texts rendered for it.

    A step that inserts results into the model's own message (`tags`) has them there in the next prompt too.
    """

    def __init__(self, *, out: TextIO | None = None) -> None:
        super().__init__(out=out)
        self._said: list[Message] = []
        self._rendered: tuple[Message, ...] = ()  # not inserted yet

    def prompt(self, question: Message) -> tuple[Message, ...]:
        """The conversation so far and this question."""
        return (*self._said, question)

    def begin(self, prompt: Sequence[Message] = ()) -> None:
        """Set the conversation, to which the next rollout adds its messages."""
        self._said, self._rendered = list(prompt), ()

    def began(self, rollout: str, prompt: Segment) -> None:
        if len(self._said) > 1:
            self._line(f"prompt: {len(prompt)} tokens, with the conversation so far", HEADER)
        super().began(rollout, prompt)

    def sampled(self, rollout: str, turn: int, generation: Generation, n_tokens: int, seconds: float) -> None:
        super().sampled(rollout, turn, generation, n_tokens, seconds)
        self._continue(generation.text)

    def rendered(self, rollout: str, messages: Sequence[Message]) -> None:
        self._rendered = tuple(messages)

    def inserted(self, rollout: str, segment: Segment) -> None:
        super().inserted(rollout, segment)
        if self._rendered:
            self._said += self._rendered
        elif self._said and self._said[-1].role == "assistant":
            self._continue(segment.text)
        self._rendered = ()

    def _continue(self, text: str) -> None:
        """Add to the message that the model is writing, or begin one."""
        written = self._said.pop().content if self._said and self._said[-1].role == "assistant" else ""
        self._said.append(Message(role="assistant", content=written + text))
