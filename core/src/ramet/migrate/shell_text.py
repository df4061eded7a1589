"""The text of a shell script, taken apart: comments, here-documents, quotes, expansions, and the words of statements.

An expansion (`$X`, `${X:-a}`, `$((…))`, `$(…)`) becomes one character that stands for it, so that its content, blanks
and quotes too, is never taken for text of the script. shlex then takes quotes and operators apart.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

FIRST = 0xF0000  # placeholders of expansions: characters for private use, which no script has
OPERATORS = "();<>|&\n"
NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
HERE_DOCUMENT = re.compile(r"<<(-?)[ \t]*(?:'([^']+)'|\"([^\"]+)\"|\\?([\w.-]+))")
KEYWORDS = frozenset({"if", "elif", "while", "until", "then", "do", "else", "{", "!"})  # before a command
KINDS = (("$((", "))", "arithmetic"), ("$(", ")", "command"), ("${", "}", "parameter"))


@dataclass(frozen=True, slots=True)
class Expansion:
    """A text that a shell replaces by a value."""

    kind: str  # parameter, arithmetic, command; nothing: an empty text
    text: str  # its content
    quoted: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """One command with its words, and how it hangs on the one before it: `&&`, `||` or not at all."""

    words: tuple[str, ...]
    joined_by: str = ""


class ShellText:
    """Prepares texts, and knows the expansions that their placeholders stand for."""

    def __init__(self) -> None:
        self._expansions: list[Expansion] = []

    def expansion(self, char: str) -> Expansion | None:
        index = ord(char) - FIRST
        return self._expansions[index] if 0 <= index < len(self._expansions) else None

    def statements(self, text: str) -> Iterator[Statement]:
        """Yield the statements of a text. Raises `ValueError` for quotes and brackets that do not end."""
        return _statements(self.prepare(text))

    def prepare(self, text: str) -> str:
        """Return the text without comments and here-documents, with placeholders. Quotes stay."""
        out, at, quoted, ends = list[str](), 0, False, list[str]()
        while at < len(text):
            char = text[at]
            if char == "\\":
                pair = text[at : at + 2].removesuffix("\\\n")  # a line that is continued
                out.append(pair[1:] if quoted and pair in ("\\$", "\\`") else pair)  # shlex keeps these in quotes
                at += 2
            elif char == "'" and not quoted:
                end = _quoted_end(text, at)
                out += [self._marked(text, at), text[at:end]]
                at = end
            elif char == "#" and not quoted and (at == 0 or text[at - 1] in " \t\n;&|("):
                end = text.find("\n", at)
                at = len(text) if end < 0 else end
            elif char == "<" and not quoted and (match := _here_document(text, at)):
                ends.append(match[2] or match[3] or match[4])
                at = match.end()
            elif char == "\n" and ends:
                out.append("\n")
                at += 1
                while ends:
                    at = _after(text, at, ends.pop(0))
            elif char == "$" and not quoted and text[at + 1 : at + 2] in ("'", '"'):
                at += 1  # `$'…'` is a text
            elif char in "$`" and (found := _expansion(text, at, quoted)):
                expansion, at = found
                out.append(self._placeholder(expansion))
            else:
                out += [self._marked(text, at) if char == '"' and not quoted else "", char]
                quoted ^= char == '"'
                at += 1
        return "".join(out)

    def _placeholder(self, expansion: Expansion) -> str:
        self._expansions.append(expansion)
        return chr(FIRST + len(self._expansions) - 1)

    def _marked(self, text: str, at: int) -> str:
        """An empty placeholder where the quoted text that begins here could be taken for an operator."""
        return self._placeholder(Expansion("nothing", "", True)) if text[at + 1 : at + 2] in tuple(OPERATORS) else ""


def unquoted(text: str, *, within: bool) -> str:
    """Return a prepared text without its quotes. `within` double quotes single ones are characters like others."""
    out, quote = list[str](), ""
    for char in text:
        if char == '"' and quote != "'":
            quote = "" if quote else '"'
        elif char == "'" and quote != '"' and not within:
            quote = "" if quote else "'"
        else:
            out.append(char)
    return "".join(out).replace("\\", "")


def _here_document(text: str, at: int) -> re.Match[str] | None:
    """The `<<END` that is here; None for `<<<`, which takes a word, and for `<`."""
    return None if text.startswith("<<<", at) or text[at - 1 : at] == "<" else HERE_DOCUMENT.match(text, at)


def _after(text: str, at: int, end: str) -> int:
    """The place after the line that ends a here-document which begins at `at`; without such a line `at`."""
    start = at
    while at < len(text):
        line, newline, _ = text[at:].partition("\n")
        at += len(line) + len(newline)
        if line.strip("\t") == end:
            return at
    return start


def _expansion(text: str, at: int, quoted: bool) -> tuple[Expansion, int] | None:
    """The expansion that begins here and where it ends; None for a `$` that is only a character."""
    if text[at] == "`":
        end = _quoted_end(text, at)
        return Expansion("command", text[at + 1 : end - 1], quoted), end
    for opening, closing, kind in KINDS:
        if text.startswith(opening, at):
            end = _closing(text, at + len(opening), opening, closing)
            return Expansion(kind, text[at + len(opening) : end], quoted), end + len(closing)
    match = NAME.match(text, at + 1)
    return None if match is None else (Expansion("parameter", match[0], quoted), match.end())


def _quoted_end(text: str, at: int) -> int:
    """The place after the quote that ends what the one here begins. Raises `ValueError` if none does."""
    end = text.find(text[at], at + 1) + 1
    if end == 0:
        raise ValueError(f"a {text[at]} is not closed")
    return end


def _closing(text: str, at: int, opening: str, closing: str) -> int:
    """The place where the bracket ends that was opened before `at`. Raises `ValueError` if it does not.

    Brackets in quotes, comments and expansions are not counted.
    """
    depth, quoted = 0, False
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in "$`" and (found := _expansion(text, at, quoted)):
            at = found[1] - 1
        elif char == "'" and not quoted:
            at = _quoted_end(text, at) - 1
        elif char == "#" and opening == "$(" and not quoted and text[at - 1] in " \t\n":
            at = max(at, text.find("\n", at))
        elif char == '"':
            quoted = not quoted
        elif not quoted:
            if depth == 0 and text.startswith(closing, at):
                return at
            depth += (char == opening[-1]) - (char == closing[0])
        at += 1
    raise ValueError(f"a {opening!r} is not closed")


def _statements(text: str) -> Iterator[Statement]:
    """Redirections are dropped. A `(…)` of commands is as a `{…}`; other brackets stay, as separate words, and their
    content is one statement, as in `[[…]]`.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words, target, depth, joined_by = list[str](), False, 0, ""
    n_cases, n_groups, in_test = 0, 0, False
    for token in lexer:
        begins = KEYWORDS.issuperset(words)
        if not token or token[0] not in OPERATORS or (in_test and token.strip()):
            n_cases += (token == "case") - (token == "esac") if begins else 0
            in_test = (in_test or (token == "[[" and begins)) and token != "]]"
            words, target = ([*words, token.strip("\n")] if not target else words), False
            continue
        if token[0] in "<>" or token.startswith("&>"):
            words = words[:-1] if words and words[-1] in ("0", "1", "2") else words
            target, depth = True, max(0, depth + token.count("(") - token.count(")"))  # the next word is a file
            continue
        for place, char in enumerate(token):
            is_open = char == "(" and not words and token[place : place + 2] != "(("
            if depth == 0 and not n_cases and (is_open or (char == ")" and n_groups > 0)):
                n_groups += 1 if is_open else -1
            elif char in "()":
                depth = max(0, depth + (char == "(") - (char == ")"))  # a single `)` ends a pattern of `case`
                words.append(char)
                continue
            if depth == 0 and words:
                yield Statement(tuple(words), joined_by)
                words, joined_by = [], ""
        if depth == 0 and not words and (joins := [mark for mark in ("&&", "||") if mark in token]):
            joined_by = joins[0]
    if words:
        yield Statement(tuple(words), joined_by)
