"""Launch scripts, read and never run: their assignments, conditions, functions, and the words of their commands.

Values that are known without running a program are evaluated: variables, arrays, arithmetic, tests of texts and
numbers, calls of functions, files that are sourced. Results of programs (`$(date)`, `[ -f FILE ]`) are not: a word with
one is reported, and an assignment that depends on one counts only if nothing was assigned before. A loop is read once,
so its variables are unknown after it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import dropwhile
from pathlib import Path

from ramet.migrate.shell_text import NAME, Statement
from ramet.migrate.shell_values import UNKNOWN, ShellValues

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)
CHANGED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)")  # by `((…))` and `let`
READERS = ("read", "mapfile", "readarray", "getopts")  # give variables what only running the script would show
FUNCTION = re.compile(r"[\w.:-]+")
DECLARATIONS = frozenset({"export", "local", "readonly", "declare", "typeset"})
SCRIPTS = (".sh", ".bash", ".env")  # files that scripts source themselves
DEEPEST, MOST_CALLS = 20, 1000  # calls of functions and files: within one another, and in all
Assignment = tuple[str, str, str, str | list[str]]  # name, `[index]`, `+`, and the value or the words of an array
NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}  # fmt: skip


@dataclass(slots=True)
class ShellCommand:
    """The words of one command, without redirections. `live`: whether it runs; None: not known."""

    words: list[str]
    live: bool | None
    repeated: bool = False  # inside a loop over several values, of which the first was taken


@dataclass(slots=True)
class Script:
    """A script that was read."""

    commands: list[ShellCommand] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Block:
    """An `if`, `case` or loop that is open."""

    kind: str
    live: bool | None = None  # of the branch that is read
    rest: bool | None = True  # whether a branch after this one may run
    tested: bool | None = None  # what its condition said so far
    testing: bool = False  # until `then` or `do`
    subject: str = ""  # of a `case`
    patterns: list[str] = field(default_factory=list)  # of a branch of a `case`, until the `)`
    repeated: bool = False
    assigned: set[str] = field(default_factory=set)  # in a loop


def read_script(text: str, path: Path) -> Script:
    """Read the script of this file. Raises `ValueError` for quotes or brackets that do not end."""
    reader = _ShellReader(path)
    reader.read(text)
    return Script(reader.commands, reader.notes)


class _ShellReader(ShellValues):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.commands: list[ShellCommand] = []
        self.project = project_of(path)
        self.shadowed: dict[str, list[str] | None] = {}  # what the `local` variables of a function hide
        self.exported: set[str] = set()  # what a script that is started gets
        self.called: set[str] = set()
        self.blocks: list[_Block] = []
        self.status: bool | None = True  # of the last command
        self.guessed = False  # whether the status is a program's, which is taken to succeed
        self.depth = self.n_calls = 0

    def read(self, text: str) -> None:
        self._run(self.text.statements(text.replace("\r\n", "\n")))
        self.blocks = [_Block("function")]
        for name in self.functions.keys() - self.called:
            self._nested(self.functions[name], [])

    def _run(self, statements: Iterable[Statement]) -> None:
        rest = iter(statements)
        for statement in rest:
            if (name := _function(statement.words)) is not None:
                self.functions[name] = list(_body(statement.words, rest))
            else:
                self._step(list(statement.words), statement.joined_by)

    def _step(self, words: list[str], joined_by: str) -> None:
        block = self.blocks[-1] if self.blocks else None
        if block is not None and block.testing and words[0] not in ("then", "do"):
            block.tested = _joined(block.tested, joined_by, self._test(words))
            return
        if words[0] in ("then", "do") and block is not None and block.testing:
            self._branch(block, block.tested)
            block.testing = False
        if words[0] in ("then", "do", "{", "else", "elif"):
            self._keyword(words, joined_by)
        elif words[0] in ("if", "while", "until", "for", "select", "case"):
            self.blocks.append(self._opened(words))
        elif words[0] in ("fi", "done", "esac"):
            if block is not None:
                self.variables |= {name: [UNKNOWN] for name in self.blocks.pop().assigned}
        elif block is not None and block.kind == "case":
            self._in_case(block, words, joined_by)
        else:
            self._command(words, joined_by)

    def _keyword(self, words: list[str], joined_by: str) -> None:
        """Read what follows a keyword on its line, and begin the branch of `else` and `elif`."""
        block = self.blocks[-1] if self.blocks else None
        if words[0] == "elif" and block is not None:
            block.testing, block.tested = True, self._test(words[1:])
            return
        if words[0] == "else" and block is not None:
            block.live = block.rest
        if words[1:]:
            self._step(words[1:], "" if words[0] != "{" else joined_by)

    def _opened(self, words: list[str]) -> _Block:
        kind, rest = words[0], words[1:]
        if kind == "if":
            return _Block(kind, testing=True, tested=self._test(rest))
        if kind in ("while", "until"):
            tested = self._test(rest)
            return _Block(kind, testing=True, tested=_not(tested) if kind == "until" else tested)
        if kind == "case":
            block = _Block(kind, live=False, subject=self.whole(rest[0]) if rest else UNKNOWN)
            if len(rest) > 2:  # `case X in a) …` on one line
                self.blocks.append(block)
                self._in_case(block, rest[2:], "")
                self.blocks.pop()
            return block
        return self._loop(kind, rest)

    def _loop(self, kind: str, words: list[str]) -> _Block:
        """Open a loop over values, of which the first is taken."""
        if len(words) < 2 or words[1] != "in":
            return _Block(kind, live=None, repeated=True)
        values = self.expand_all(words[2:])
        live = False if not values else None if UNKNOWN in values[0] else True
        block = _Block(kind, live=live, repeated=live is None or len(values) > 1)
        if values and self._live() is not False:
            self.variables[words[0]] = values[:1]
            block.assigned |= {words[0]} if block.repeated else set()
        return block

    def _branch(self, block: _Block, tested: bool | None) -> None:
        block.live = _both(block.rest, tested)
        block.rest = _both(block.rest, _not(tested))

    def _in_case(self, block: _Block, words: list[str], joined_by: str) -> None:
        """Begin a branch of a `case` if a pattern ends here, and read the command."""
        at = _pattern_end(words)
        if at is None:
            block.patterns = [*block.patterns, words[0]] if len(words) == 1 else []  # perhaps `a` of `a|b)`
            self._command(words, joined_by)
            return
        patterns = [*block.patterns, *(word for word in words[:at] if word != "(")]
        block.patterns = []
        known = [_matches(block.subject, self.whole(pattern)) for pattern in patterns]
        self._branch(block, True if True in known else None if None in known else False)
        if words[at + 1 :]:
            self._command(words[at + 1 :], "")

    def _live(self) -> bool | None:
        live: bool | None = True
        for block in self.blocks:
            live = _both(live, block.live)
        return live

    def _command(self, words: list[str], joined_by: str) -> None:
        """Read assignments and one command."""
        live = _both(self._live(), self._reached(words, joined_by))
        is_test = words[0] in ("[", "[[", "test", "!", "true", "false")
        if live is not False:
            self.status, self.guessed = self._test(words) if is_test else True, self.guessed and joined_by != ""
        if is_test:
            return
        if words[0] in DECLARATIONS:
            self._declare(words, live)
            return
        for name in _changed(words):
            self._set(name, [UNKNOWN], live, added="")
        assignments, words = _assignments(words)
        if not words:
            self._assign(assignments, live)
            return
        expanded = self.expand_all(words[1:] if words[0] in ("(", ")", "}") else words)
        followed = live is not False and self._followed(expanded, assignments)
        if expanded and not followed:
            self.guessed = self.guessed or live is not False
            self.commands.append(ShellCommand(expanded, live, any(block.repeated for block in self.blocks)))

    def _reached(self, words: Sequence[str], joined_by: str) -> bool | None:
        """Whether a command runs after the one that it is joined to.

        A program is taken to succeed, but decides no value.
        """
        if self.guessed and joined_by and (words[0] in DECLARATIONS or ASSIGNMENT.fullmatch(words[0])):
            return None
        return {"": True, "&&": self.status, "||": _not(self.status)}[joined_by]

    def _declare(self, words: Sequence[str], live: bool | None) -> None:
        """Read `export`, `local` and their like."""
        flags = [word for word in words[1:] if word.startswith("-")]
        rest = list(dropwhile(flags.__contains__, words[1:]))
        names = [word.partition("=")[0].rstrip("+") for word in rest if NAME.match(word)]
        if words[0] == "export" or any("x" in flag for flag in flags):
            self.exported.update(names)
        if words[0] == "local":
            self.shadowed |= {n: self.variables.get(n) for n in names if n not in self.shadowed}
        while rest:
            assignments, rest = _assignments(rest)
            self._assign(assignments, live)
            rest = rest[1:]  # `export X`

    def _assign(self, assignments: Iterable[Assignment], live: bool | None) -> None:
        for name, index, plus, value in assignments:
            is_array = isinstance(value, list)
            values = self.expand_all(value) if isinstance(value, list) else [_at_home(self.whole(value))]
            added = "array" if plus and is_array else "text" if plus else ""
            self._set(name, [UNKNOWN] if index else values, live, added=added)

    def _set(self, name: str, values: list[str], live: bool | None, *, added: str) -> None:
        if live is False:
            return
        if live is None and name in self.variables:
            self.notes.append(f"{name} is also set under a condition, which is not read")
            return
        for block in self.blocks:
            block.assigned |= {name} if block.repeated else set()
        old = self.variables.get(name, [])
        self.variables[name] = {"": values, "array": [*old, *values], "text": ["".join([*old, *values])]}[added]

    def _followed(self, words: list[str], assignments: Sequence[Assignment]) -> bool:
        """Follow what changes the folder, calls a function, or reads another script; returns whether it is read.

        `assignments`: the ones before the command, only for it.
        """
        hidden = {name: self.variables.get(name) for name, *_ in assignments}
        self._assign(assignments, True)
        try:
            return self._called(words, self.exported.union(hidden))
        finally:
            self._restore(hidden)

    def _restore(self, hidden: Mapping[str, list[str] | None]) -> None:
        for name, values in hidden.items():
            self.variables.pop(name, None)
            self.variables |= {} if values is None else {name: values}

    def _called(self, words: list[str], exported: set[str]) -> bool:
        match words:
            case ["cd", place] if UNKNOWN not in place:
                self.folder = os.path.normpath(os.path.join(self.folder, place))
            case ["unset", *names]:
                self._restore(dict.fromkeys(names))
            case ["shift", *_]:
                del self.arguments[:1]
            case ["source" | ".", file, *arguments]:
                return self._file(file, arguments or self.arguments)
            case ["eval", *texts]:
                return self._nested(self._statements(" ".join(texts)), self.arguments)
            case [name, *arguments] if name in self.functions:
                self.called.add(name)
                before, self.shadowed = self.shadowed, {}
                is_read = self._nested(self.functions[name], arguments)
                self._restore(self.shadowed)
                self.shadowed = before
                return is_read
            case [*_, "bash" | "sh", "-c", text]:
                return self._child(lambda: self._nested(self._statements(text), []), exported)
            case ["bash" | "sh", file, *arguments]:
                return self._child(lambda: self._file(file, arguments), exported)
        return False

    def printed(self, name: str, arguments: Sequence[str]) -> str:
        n_commands = len(self.commands)
        self.called.add(name)
        before = dict(self.variables)
        is_read = self._nested(self.functions[name], arguments)
        commands = [command for command in self.commands[n_commands:] if command.live is not False]
        self.variables = before
        del self.commands[n_commands:]
        is_known = is_read and all(command.words[0] == "echo" and command.live for command in commands)
        lines = (" ".join(command.words[1:]) for command in commands)
        return "\n".join(lines) if is_known else UNKNOWN

    def _child(self, read: Callable[[], bool], exported: set[str]) -> bool:
        """Read the commands of another shell: it gets exported variables, and gives nothing back."""
        before, folder = self.variables, self.folder
        self.variables = {name: values for name, values in before.items() if name in exported}
        is_read = read()
        self.variables, self.folder = before, folder
        return is_read

    def _file(self, file: str, arguments: Sequence[str]) -> bool:
        """Read another script of the same project, if it is here."""
        path = Path(self.folder, file).resolve()
        if UNKNOWN in file or path.suffix not in SCRIPTS or not path.is_relative_to(self.project):
            return False
        try:
            statements = self._statements(path.read_text(encoding="utf-8").replace("\r\n", "\n"))
        except (OSError, UnicodeDecodeError):
            return False
        before, self.path = self.path, path
        self.notes.append(f"{path.name}, which the script calls, was read too")
        self._nested(statements, arguments)
        self.path = before
        return True

    def _statements(self, text: str) -> list[Statement]:
        """The statements of a text inside the script; none of one that cannot be taken apart."""
        try:
            return list(self.text.statements(text))
        except ValueError:
            self.notes.append("a text or a file that the script runs cannot be read")
            return []

    def _nested(self, statements: Iterable[Statement], arguments: Sequence[str]) -> bool:
        if self.depth == DEEPEST or self.n_calls == MOST_CALLS:
            return False
        self.n_calls += 1
        before, self.arguments = self.arguments, list(arguments)
        n_blocks = len(self.blocks)
        self.depth += 1
        self._run(statements)
        self.depth -= 1
        del self.blocks[n_blocks:]
        self.arguments = before
        return True

    def _test(self, words: Sequence[str]) -> bool | None:
        """The result of a test; None if only running it would show it."""
        if words and words[0] == "!":
            return _not(self._test(words[1:]))
        if len(words) == 1 and words[0] in ("true", ":", "false"):
            return words[0] != "false"
        if not words or words[0] not in ("[", "[[", "test") or (words[0] != "test" and words[-1] not in ("]", "]]")):
            return None
        inner = words[1:] if words[0] == "test" else words[1:-1]
        for mark in ("||", "&&") if words[0] == "[[" and "(" not in inner else ():
            if mark in inner:
                at = inner.index(mark)
                first, second = (self._test(["[[", *part, "]]"]) for part in (inner[:at], inner[at + 1 :]))
                return _joined(first, mark, second)
        return self._compared([self.whole(word) for word in inner], fnmatchcase if words[0] == "[[" else str.__eq__)

    def _compared(self, operands: list[str], same: Callable[[str, str], bool]) -> bool | None:
        if any(UNKNOWN in operand for operand in operands):
            return None
        match operands:
            case ["!", _, *_]:
                return _not(self._compared(operands[1:], same))
            case ["-z", text]:
                return text == ""
            case ["-n", text] | [text]:
                return text != ""
            case [left, "=" | "==", right]:
                return same(left, right)
            case [left, "!=", right]:
                return not same(left, right)
            case [left, "=~", right] if re.fullmatch(r"[\w/-]+", right):
                return right in left
            case [left, sign, right] if sign in NUMBERS and _is_number(left) and _is_number(right):
                return NUMBERS[sign](int(left), int(right))
        return None


def project_of(path: Path) -> Path:
    """The folder that the files of a script's project are in: the one above its own, or its own in a home."""
    folder = path.resolve().parent
    return folder if folder.parent in (*Path.home().resolve().parents, Path(folder.anchor)) else folder.parent


def _assignments(words: list[str]) -> tuple[list[Assignment], list[str]]:
    """The assignments at the beginning of a command, and its other words."""
    made = list[Assignment]()
    while words and (match := ASSIGNMENT.fullmatch(words[0])) is not None:
        name, index, plus, value = match.groups()
        if value == "" and words[1:2] == ["("]:
            end = words.index(")") if ")" in words else len(words)
            value, words = words[2:end], words[end:]
        made.append((name, index or "", plus, value))
        words = words[1:]
    return made, words


def _changed(words: Sequence[str]) -> list[str]:
    """Return the variables that a command sets to unknown values."""
    if words[0] in READERS:
        return [word for word in words[1:] if word.isidentifier()]
    return CHANGED.findall(" ".join(words)) if words[0] == "let" or tuple(words[:2]) == ("(", "(") else []


def _function(words: Sequence[str]) -> str | None:
    """The name of a function that is defined here."""
    if words[0] == "function" and len(words) > 1:
        return words[1]
    return words[0] if tuple(words[1:3]) == ("(", ")") and FUNCTION.fullmatch(words[0]) else None


def _body(words: tuple[str, ...], rest: Iterator[Statement]) -> Iterator[Statement]:
    """Take the statements of a function up to its `}`. `words`: of its first line."""
    depth = 0
    if "{" in words:
        depth, after = 1, words[words.index("{") + 1 :]
        yield from [Statement(after)] if after else []
    for statement in rest:
        if depth == 0:  # the `{` has a separate line
            depth = 1
            yield from [Statement(statement.words[1:])] if statement.words[1:] else []
            continue
        first = next((word for word in statement.words if word not in ("then", "do", "else")), "")
        depth += (first == "{") - (first == "}")
        if depth == 0:
            return
        yield statement


def _pattern_end(words: Sequence[str]) -> int | None:
    """The place of the `)` that ends a pattern of `case`; None where these words are a command."""
    at = words.index(")") if ")" in words else None
    return at if at is None or "(" not in words[1:at] else None


def _matches(subject: str, pattern: str) -> bool | None:
    if pattern == "*":
        return True
    return None if UNKNOWN in subject or UNKNOWN in pattern else fnmatchcase(subject, pattern)


def _both(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _joined(before: bool | None, joined_by: str, value: bool | None) -> bool | None:
    if joined_by == "&&":
        return _both(before, value)
    return _not(_both(_not(before), _not(value))) if joined_by == "||" else value


def _at_home(value: str) -> str:
    """A value that begins with `~/`, as a shell assigns it."""
    return os.path.expanduser(value) if value == "~" or value.startswith("~/") else value


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+", text.strip()) is not None
