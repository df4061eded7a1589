"""Traces become token ids and masks exactly as rollouts make them (docs/design.md).

The prompt is encoded as a rollout's prompt. The rollout step cuts the reply into parts that the policy writes and
inserted parts. Each part is encoded separately, as in a rollout, where a result is never tokenised together with the
text before it. A conversation of n exchanges gives n examples, because that is what a chat template makes of it: many
templates render an earlier reply differently from the one that is being written.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ramet.errors import ConfigError
from ramet.models.encoder import Encoder
from ramet.rollout.prompts import Prompt
from ramet.sft.exchanges import Conversation, Exchange, Piece, Returned, Written
from ramet.types import Insert, Markup, Message, Sampled, Task, TemplateFormat, TracePart, TraceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One sequence: everything up to a reply, and that reply."""

    token_ids: array[int]  # int32
    trained: array[int]  # int8, 1 on what the policy writes and on the end of its turn
    where: str = ""  # file, row and, of several, the exchange

    def __len__(self) -> int:
        return len(self.token_ids)


class TraceEncoder:
    """Encodes conversations for one rollout step and one set of tools."""

    def __init__(
        self,
        encoder: Encoder,
        reader: TraceReader | TemplateFormat,
        *,
        tools: Sequence[str],
        prompt: Callable[[Task], Prompt],
        mask_history: bool = False,
    ) -> None:
        """`prompt` is the same as in rollouts. `mask_history`: only the last trained message of a row is trained."""
        self.encoder = encoder
        self._reader = reader
        self._tools = tuple(tools)
        self._prompt = prompt
        self._mask_history = mask_history
        self._end = encoder.decode([encoder.end_of_turn_id])
        self._wrapper = [mark for part in self._wrapped("") if isinstance(part, Markup) and (mark := part.text.strip())]

    def examples(self, conversation: Conversation) -> Iterator[Example]:
        """One example per exchange with trained messages, each with all exchanges before it in its prompt."""
        history = [Message(role="system", content=conversation.system)] if conversation.system is not None else []
        several = len(conversation.exchanges) > 1
        tools = self._tools_of(conversation)
        for number, exchange in enumerate(self._weighted(conversation.exchanges), start=1):
            history.append(Message(role="user", content=exchange.user))
            task = Task(id=conversation.where, prompt=tuple(history), schemas=conversation.tools)
            parts = self._parts(exchange, tools)
            where = f"{conversation.where}, exchange {number}" if several else conversation.where
            if any(piece.trained for piece in exchange.reply if isinstance(piece, Written)):
                yield self._example(self._prompt(task), parts, where, ends=exchange.turns[-1].written.trained)
            history += self._as_messages(exchange, parts)

    def _tools_of(self, conversation: Conversation) -> Sequence[str]:
        """Names of the tools whose results in a text are masked."""
        return (*self._tools, *(schema.name for schema in conversation.tools or ()))

    def _weighted(self, exchanges: Sequence[Exchange]) -> Sequence[Exchange]:
        """The exchanges with their trained parts."""
        if not self._mask_history:
            return exchanges
        trained = [piece for one in exchanges for piece in one.reply if isinstance(piece, Written) and piece.trained]
        last = trained[-1] if trained else None  # the very one: others may be equal
        return [replace(one, reply=tuple(_only(piece, last) for piece in one.reply)) for one in exchanges]

    def unread_results(self, conversation: Conversation) -> bool:
        """Whether the text that counts as the policy's has a result wrapper, as of a tool that is not configured."""
        tools = self._tools_of(conversation)
        pieces = (piece for exchange in self._weighted(conversation.exchanges) for piece in exchange.reply)
        written = (piece.text for piece in pieces if isinstance(piece, Written) and piece.trained)
        if isinstance(self._reader, TemplateFormat):
            return any(map(self._wraps, written))
        parts = (part for text in written for part in self._reader.read(text, tools))
        return any(isinstance(part, Sampled) and self._wraps(part.text) for part in parts)

    def _wraps(self, text: str) -> bool:
        position = 0
        for mark in self._wrapper:
            position = text.find(mark, position)
            if position < 0:
                return False
            position += len(mark)
        return bool(self._wrapper)

    def _wrapped(self, text: str) -> Sequence[Insert]:
        """A result as a rollout inserts it; nothing for a chat template that takes none."""
        if not isinstance(self._reader, TemplateFormat):
            return self._reader.result(text)
        try:
            return self.encoder.suffix(self._reader.results([text]), after=self.encoder.end_of_turn_id)
        except ValueError:
            return ()

    def _parts(self, exchange: Exchange, tools: Sequence[str]) -> list[TracePart]:
        """Return the parts of the trace, without the end of the last turn. Untrained parts are `Markup`."""
        if isinstance(self._reader, TemplateFormat):
            return list(self._rendered(exchange, self._reader))
        parts: list[TracePart] = []
        for piece in exchange.reply:
            if isinstance(piece, Returned):
                parts += self._reader.result(piece.text)
            else:
                read = self._reader.read(piece.text, tools)
                parts += read if piece.trained else map(_masked, read)
        return parts

    def _rendered(self, exchange: Exchange, form: TemplateFormat) -> Iterator[TracePart]:
        """Every message with its end, which the policy samples too, and results as the chat template renders them."""
        turns = exchange.turns
        for turn in turns:
            end = self._end if turn.returned or turn is not turns[-1] else ""
            said = Sampled(text=self._written(turn.written) + end)
            yield said if turn.written.trained else _masked(said)
            if turn.returned:
                yield from self._suffix(form.results(turn.returned))

    def _suffix(self, messages: Sequence[Message]) -> Sequence[Insert]:
        try:
            return self.encoder.suffix(messages, after=self.encoder.end_of_turn_id)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _written(self, piece: Written) -> str:
        return self.encoder.template.reply(piece.text, piece.calls_as_dicts) if piece.calls else piece.text

    def _as_messages(self, exchange: Exchange, parts: Sequence[TracePart]) -> Iterator[Message]:
        """An exchange as later ones have it in their prompt."""
        if not isinstance(self._reader, TemplateFormat):
            yield Message(role="assistant", content="".join(part.text for part in parts))
            return
        for turn in exchange.turns:
            yield Message(role="assistant", content=self._written(turn.written))
            yield from self._reader.results(turn.returned)

    def _example(self, prompt: Prompt, parts: Sequence[TracePart], where: str, *, ends: bool) -> Example:
        """`ends`: the end of the reply is trained."""
        ids = array("i", self.encoder.prompt(prompt.messages, prompt.tools))
        trained = array("b", bytes(len(ids)))
        for part in parts:
            sampled = isinstance(part, Sampled)
            more = self.encoder.markup(part.text) if isinstance(part, Sampled) else self.encoder.insert(part)
            ids.extend(more)
            trained.extend([int(sampled)] * len(more))
        ids.append(self.encoder.end_of_turn_id)
        trained.append(int(ends))
        return Example(token_ids=ids, trained=trained, where=where)


def _only(piece: Piece, trained: Written | None) -> Piece:
    """The piece, without labels if it is not the one that is trained."""
    return piece if isinstance(piece, Returned) or piece is trained else replace(piece, trained=False)


def _masked(part: TracePart) -> TracePart:
    """The same tokens without a label."""
    return Markup(text=part.text) if isinstance(part, Sampled) else part
