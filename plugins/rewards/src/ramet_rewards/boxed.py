"""Final answers in LaTeX: out of their box, and words out of their wrappers."""

from __future__ import annotations

import re

WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|operatorname)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\\ |~")
_EMPHASIS = re.compile(r"(\*{1,3}|`)([^*`]+)\1")
MOST_WRAPPERS = 3  # around each other
_OPENING = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` (or `\fbox{…}`) whose braces balance, or None.

    For nested boxes that is the innermost of the last ones. Escaped braces do not count. Reads the text once, since an
    answer may have thousands of boxes that are never closed.
    """
    boxes = {opening.end() for opening in _OPENING.finditer(text)}  # positions of their braces
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
    """The answer without its box, if it has one, and without Markdown's signs around all of it: `**5**` is `5`."""
    content = last_boxed(answer)
    bare = (answer if content is None else content).strip()
    emphasised = _EMPHASIS.fullmatch(bare)
    return bare if emphasised is None else emphasised[2].strip()


def words_of(answer: str) -> str:
    r"""Return what a reader sees: `\text{New York}`, `\textbf{\text{New York}}` and `New~York` are `New York`."""
    for _ in range(MOST_WRAPPERS):
        answer = WRAPPER.sub(r"\1", answer)
    return _SPACE.sub(" ", answer).strip()
