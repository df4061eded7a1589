"""Texts of single tokens, for shading. The record holds a segment's text and ids; the tokenizer knows the seams."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ramet.types import Segment

logger = logging.getLogger(__name__)
TOKENIZER = "tokenizer.json"


class Splitter(Protocol):
    def __call__(self, segment: Segment) -> list[str] | None:
        """One text per token, joining to the segment's text; None where that cannot be had."""
        ...


def no_splitter(segment: Segment) -> list[str] | None:
    """For runs whose tokenizer is not at hand: entropies are then drawn as bars."""
    return None


def find_splitter(folders: Sequence[Path]) -> Splitter:
    """A splitter from the first folder that holds a fast tokenizer, if the library `tokenizers` is installed."""
    found = next((folder / TOKENIZER for folder in folders if (folder / TOKENIZER).is_file()), None)
    if found is None:
        return no_splitter
    try:
        return TokenizerSplitter(found)
    except ImportError:
        logger.info("report: library tokenizers is not installed, so tokens are not shown one by one")
    except Exception as error:  # the library raises bare Exception for a broken file
        logger.warning("report: %s could not be read, so tokens are not shown one by one: %s", found, error)
    return no_splitter


class TokenizerSplitter:
    """Decodes token by token. A character of several tokens stands at the last of them."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(file))

    def __call__(self, segment: Segment) -> list[str] | None:
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        try:
            texts = [stream.step(self._tokenizer, token) or "" for token in segment.token_ids]
        except Exception:  # an id or a byte sequence that the library refuses
            return None
        joined = "".join(texts)
        rest = segment.text[len(joined) :]  # an unfinished character, which is still in the stream
        if not texts or segment.text != joined + rest or rest.strip("\ufffd"):
            return None
        texts[-1] += rest
        return texts
