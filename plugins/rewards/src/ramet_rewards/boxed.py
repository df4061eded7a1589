"""Final answers in LaTeX boxes."""

from __future__ import annotations

import re

_OPENING = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")


def last_boxed(text: str) -> str | None:
    r"""What is in the last `\boxed{…}` (or `\fbox{…}`) whose braces balance; None if there is none.

    Of nested boxes that is the innermost of the last ones. Escaped braces do not count. Reads the text once, since an
    answer may hold thousands of boxes that are never closed.
    """
    boxes = {found.end() for found in _OPENING.finditer(text)}  # positions of their braces
    if not boxes:
        return None
    open_braces: list[int] = []
    best: tuple[int, int] | None = None
    escaped = False
    for position, char in enumerate(text):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "{":
            open_braces.append(position)
        elif char == "}" and open_braces:
            start = open_braces.pop()
            if start in boxes and (best is None or start > best[0]):
                best = start, position
    return None if best is None else text[best[0] + 1 : best[1]]


def final(answer: str) -> str:
    """The answer without its box, if it has one."""
    content = last_boxed(answer)
    return (answer if content is None else content).strip()
