"""The turn protocol of the released code: which text is a call, and in which form its result is inserted."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramet import Origin, Segment, SegmentKind, ToolSchema

if TYPE_CHECKING:
    from ramet_release.internals import Encoder


def stop_strings(tools: Sequence[ToolSchema]) -> tuple[str, ...]:
    """The closing tags of the tools, in the order of the configuration."""
    return tuple(f"</{tool.name}>" for tool in tools)


def requested(text: str, tag: str) -> str | None:
    """Text in the last pair of this tag, stripped; None if it is empty or has no opening tag.

    `text` is the complete rollout, prompt and results included: an example in the prompt can be taken for a call.
    """
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return text[start + len(tag) + 2 : end].strip() or None if 0 <= start < end else None


def result_segment(text: str, turn: int, tag: str, result_tag: str, encoder: Encoder) -> Segment:
    """A tool's result in its wrapper, tokenised as a separate text as the tokenizer does by default.

    So special tokens that the text spells become real ones, and some tokenizers begin it with a BOS.
    """

    def wrapped(inner: str) -> str:
        return f" <{result_tag}>\n{inner}\n</{result_tag}>"

    try:
        ids = encoder.tokenizer.encode(wrapped(text))
    except Exception as error:  # any tokenizer's: it may be unable to encode the text
        text = f"Error: Tool({tag}) execution failed with message: {error}"
        ids = encoder.tokenizer.encode(wrapped(text))
    return Segment(
        origin=Origin.INSERTED,
        kind=SegmentKind.RESULT,
        turn=turn,
        text=encoder.decode(ids),
        token_ids=array("i", ids),
    )


def forced_end(turn: int, version: int | None, encoder: Encoder) -> Segment:
    """The end of sequence after a call too many. It is trained as if the policy had sampled it.

    It was not sampled, so its log-probability is 0 and its entropy too; the release has no use for either.
    """
    zero = array("f", [0.0])
    return Segment(
        origin=Origin.SAMPLED,
        kind=SegmentKind.FORCED,
        turn=turn,
        text="",
        token_ids=array("i", [encoder.eos_id]),
        logprobs=zero,
        entropies=zero,
        policy_version=version,
    )
