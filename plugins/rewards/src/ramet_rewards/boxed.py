"""Final answers in LaTeX boxes."""

from __future__ import annotations

_OPENINGS = ("\\boxed", "\\fbox")


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{…}` (or `\fbox{…}`) whose braces balance; None if there is none.

    Of nested boxes that is the innermost of the last ones. Escaped braces do not count.
    """
    end = len(text)
    while (start := max(text.rfind(opening, 0, end) for opening in _OPENINGS)) >= 0:
        brace = text.find("{", start)
        if brace >= 0 and text[start:brace].rstrip() in _OPENINGS:
            content = _balanced(text, brace)
            if content is not None:
                return content
        end = start
    return None


def final(answer: str) -> str:
    """The answer without its box, if it has one."""
    content = last_boxed(answer)
    return (answer if content is None else content).strip()


def _balanced(text: str, brace: int) -> str | None:
    depth, position = 0, brace
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 1
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return text[brace + 1 : position]
        position += 1
    return None
