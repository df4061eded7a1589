"""Stop strings: looked for in the text of the newly sampled tokens only, across token borders.

Decoding after every token would cost more than the forward pass of a small model. A token can complete a stop string
only if its own text holds the string's last character, so only such tokens have the text behind them decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from ramet.models.encoder import Encoder

SLACK = 16  # tokens without text of their own that a stop string may contain


class StopStrings:
    """The stop strings of a request. Instances are shared by requests with the same strings: they only remember."""

    def __init__(self, strings: tuple[str, ...], encoder: Encoder) -> None:
        self.strings = strings
        self._encoder = encoder
        self._last = {text[-1] for text in strings}
        self._unclear = any(char.isspace() or not char.isascii() for char in self._last)
        self._window = max(len(text.encode()) for text in strings) + SLACK
        self._may_end: dict[int, bool] = {}

    def found(self, sampled: Sequence[int]) -> str | None:
        """The stop string that the last of these tokens completed: the one that ends first, the longest of those."""
        token = sampled[-1]
        may_end = self._may_end.get(token)
        if may_end is None:
            may_end = self._may_end[token] = self._can_end(token)
        if not may_end:
            return None
        text = self._encoder.decode(sampled[-self._window :])
        ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self.strings if stop in text]
        return min(ends)[2] if ends else None

    def _can_end(self, token: int) -> bool:
        """False only if this token cannot hold the last character of a stop string."""
        if self._unclear:  # a character may be spread over tokens, and decoders strip spaces from a lone token
            return True
        text = self._encoder.decode([token])
        return not text or any(char in text for char in self._last)
