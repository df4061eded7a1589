"""Launch scripts, read and never run: their assignments, conditions, functions, and the words of their commands.

What is known without running a program is evaluated: variables, arrays, arithmetic, tests of texts and numbers, calls
of functions, files that are sourced. What a program would have to say (`$(date)`, `[ -f FILE ]`) is not: a word that
needs it is reported, and what depends on it counts only where nothing was assigned before.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import dropwhile
from pathlib import Path, PurePosixPath

from ramet.migrate.shell_text import NAME, Expansion, ShellText, Statement, unquoted

UNKNOWN = "\uf8ff"  # stands in a word for what is known only when the script runs
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)
CHANGED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)")  # by `((…))` and `let`
READERS = ("read", "mapfile", "readarray", "getopts")  # give variables what only running the script would show
FUNCTION = re.compile(r"[\w.:-]+")
INDEX = re.compile(r"\[([^\]]*)\]")
DECLARATIONS = frozenset({"export", "local", "readonly", "declare", "typeset"})
FROM_HERE = ("HOME", "USER")
SCRIPTS = (".sh", ".bash", ".env")  # what scripts source of their own
USUAL = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")  # scripts add to them, and no launch reads them
OF_SCRIPT = ("0", "BASH_SOURCE")
DEEPEST, MOST_CALLS = 20, 1000  # calls of functions and files: within one another, and in all
BITS = 64  # of a number
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


def read_script(text: str, path: Path) -> Script:
    """Read the script of this file. Raises `ValueError` for quotes or brackets that do not end."""
    reader = _ShellReader(path)
    reader.read(text)
    return reader.script


class _ShellReader:
    def __init__(self, path: Path) -> None:
        self.script = Script()
        self.text = ShellText()
        self.path = path
        self.folder = os.getcwd()  # the working directory, which `cd` changes
        self.variables: dict[str, list[str]] = {}  # arrays; a usual variable is a list of one
        self.arguments: list[str] = []
        self.functions: dict[str, list[Statement]] = {}
        self.called: set[str] = set()
        self.blocks: list[_Block] = []
        self.status: bool | None = True  # of the last command
        self.depth = self.n_calls = 0
        self.unset: set[str] = set()

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
            del self.blocks[-1:]
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
            block = _Block(kind, live=False, subject=self._whole(rest[0]) if rest else UNKNOWN)
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
        values = self._expand_all(words[2:])
        if values and self._live() is not False:
            self.variables[words[0]] = values[:1]
        live = False if not values else None if UNKNOWN in values[0] else True
        return _Block(kind, live=live, repeated=live is None or len(values) > 1)

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
        known = [_matches(block.subject, self._whole(pattern)) for pattern in patterns]
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
        live = _both(self._live(), {"": True, "&&": self.status, "||": _not(self.status)}[joined_by])
        is_test = words[0] in ("[", "[[", "test", "!", "true", "false")
        if live is not False:
            self.status = self._test(words) if is_test else True
        if is_test:
            return
        if words[0] in DECLARATIONS:
            self._assign(list(dropwhile(lambda word: word.startswith("-"), words[1:])), live, declared=True)
            return
        for name in _changed(words):
            self._set(name, [UNKNOWN], live, added="")
        words = self._assign(words, live)
        expanded = self._expand_all(words[1:] if words[:1] in (["("], [")"], ["}"]) else words)
        followed = live is not False and self._followed(expanded)
        if expanded and not followed:
            self.script.commands.append(ShellCommand(expanded, live, any(block.repeated for block in self.blocks)))

    def _assign(self, words: list[str], live: bool | None, *, declared: bool = False) -> list[str]:
        """Make the assignments at the beginning of a command; returns its other words."""
        while words and (declared or ASSIGNMENT.fullmatch(words[0])):
            match = ASSIGNMENT.fullmatch(words[0])
            if match is None:  # `export X`
                words = words[1:]
                continue
            name, index, plus, value = match.groups()
            is_array = value == "" and words[1:2] == ["("]
            if is_array:
                end = words.index(")") if ")" in words else len(words)
                values, words = self._expand_all(words[2:end]), words[end + 1 :]
            else:
                values, words = [UNKNOWN if index else _at_home(self._whole(value))], words[1:]
            self._set(name, values, live, added="array" if plus and is_array else "text" if plus else "")
        return words

    def _set(self, name: str, values: list[str], live: bool | None, *, added: str) -> None:
        if live is False:
            return
        if live is None and name in self.variables:
            self.script.notes.append(f"{name} is also set under a condition, which is not read")
            return
        old = self.variables.get(name, [])
        self.variables[name] = {"": values, "array": [*old, *values], "text": ["".join([*old, *values])]}[added]

    def _followed(self, words: list[str]) -> bool:
        """Follow what changes the folder, calls a function, or reads another script; returns whether it is read."""
        match words:
            case ["cd", place] if UNKNOWN not in place:
                self.folder = os.path.normpath(os.path.join(self.folder, place))
            case ["unset", *names]:
                for name in names:
                    self.variables.pop(name, None)
            case ["shift", *_]:
                del self.arguments[:1]
            case ["source" | ".", file, *arguments]:
                return self._file(file, arguments or self.arguments)
            case ["eval", *texts]:
                return self._nested(self._statements(" ".join(texts)), self.arguments)
            case [name, *arguments] if name in self.functions:
                self.called.add(name)
                return self._nested(self.functions[name], arguments)
            case [*_, "bash" | "sh", "-c", text]:
                return self._nested(self._statements(text), [])
            case ["bash" | "sh", file, *arguments]:
                return self._file(file, arguments)
        return False

    def _file(self, file: str, arguments: Sequence[str]) -> bool:
        """Read another script of the same project, if it is here."""
        path = Path(self.folder, file).resolve()
        if UNKNOWN in file or path.suffix not in SCRIPTS or not path.is_relative_to(self.path.resolve().parent.parent):
            return False
        try:
            statements = self._statements(path.read_text(encoding="utf-8").replace("\r\n", "\n"))
        except (OSError, UnicodeDecodeError):
            return False
        before, self.path = self.path, path
        self.script.notes.append(f"{path.name}, which the script calls, was read too")
        self._nested(statements, arguments)
        self.path = before
        return True

    def _statements(self, text: str) -> list[Statement]:
        """The statements of a text inside the script; none of one that cannot be taken apart."""
        try:
            return list(self.text.statements(text))
        except ValueError:
            self.script.notes.append("a text or a file that the script runs cannot be read")
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
        """What a test says; None for what only running it would."""
        if words and words[0] == "!":
            return _not(self._test(words[1:]))
        if len(words) == 1 and words[0] in ("true", ":", "false"):
            return words[0] != "false"
        if not words or words[0] not in ("[", "[[", "test") or (words[0] != "test" and words[-1] not in ("]", "]]")):
            return None
        operands = [self._whole(word) for word in (words[1:] if words[0] == "test" else words[1:-1])]
        if any(UNKNOWN in operand for operand in operands):
            return None
        same = fnmatchcase if words[0] == "[[" else str.__eq__
        match operands:
            case ["-z", text]:
                return text == ""
            case ["-n", text] | [text]:
                return text != ""
            case [left, "=" | "==", right]:
                return same(left, right)
            case [left, "!=", right]:
                return not same(left, right)
            case [left, sign, right] if sign in NUMBERS and _is_number(left) and _is_number(right):
                return NUMBERS[sign](int(left), int(right))
        return None

    def _expand_all(self, words: Iterable[str]) -> list[str]:
        return [expanded for word in words for expanded in self._expand(word)]

    def _expand(self, word: str) -> list[str]:
        """Return what a word becomes: several words of `"${A[@]}"` and `"$@"`, and of `$A` with spaces."""
        expansion = self.text.expansion(word) if len(word) == 1 else None
        if expansion is None or expansion.kind == "nothing":
            return [self._whole(word)]
        name = expansion.text.removesuffix("[@]")
        is_array = name == "@" or (name != expansion.text and name.isidentifier())
        if expansion.kind == "parameter" and is_array:
            values = self._variable(name) or []
        else:
            values = [self._value(expansion)]
        return values if expansion.quoted else [part for value in values for part in value.split()]

    def _whole(self, word: str) -> str:
        found = ((char, self.text.expansion(char)) for char in word)
        return "".join(char if expansion is None else self._value(expansion) for char, expansion in found)

    def _value(self, expansion: Expansion) -> str:
        match expansion.kind:
            case "parameter":
                return self._parameter(expansion.text, quoted=expansion.quoted)
            case "arithmetic":
                return self._arithmetic(expansion.text)
            case "command":
                return self._output(expansion.text)
        return ""

    def _variable(self, name: str) -> list[str] | None:
        """The values of a variable; None if it has none."""
        if name in self.variables:
            return self.variables[name]
        if name in OF_SCRIPT:
            return [str(self.path)]
        if name in ("@", "*"):
            return self.arguments
        if name == "#":
            return [str(len(self.arguments))]
        if name.isdigit():
            return self.arguments[int(name) - 1 : int(name)] or None
        if name == "PWD":
            return [self.folder]
        if name in ("$", "!", "?", "-"):
            return [UNKNOWN]
        return [os.environ[name]] if name in FROM_HERE and name in os.environ else None

    def _parameter(self, text: str, *, quoted: bool) -> str:
        if (length := re.fullmatch(r"#(\w+)(\[[@*]\])?", text)) is not None:
            measured = self._variable(length[1]) or []
            return str(len(measured) if length[2] else len(" ".join(measured)))
        match = NAME.match(text)
        if match is None:
            return UNKNOWN
        name, rest = match[0], text[match.end() :]
        values = self._variable(name)
        if (index := INDEX.match(rest)) is not None:
            values, rest = _at_index(values, index[1]), rest[index.end() :]
        value = None if values is None else " ".join(values)
        return self._of_operator(name, value, rest, quoted=quoted) if rest else self._plain(name, value)

    def _plain(self, name: str, value: str | None) -> str:
        if value is not None:
            return value
        if name.isdigit():
            return UNKNOWN  # an argument of the script
        if name.isidentifier() and name not in (*self.unset, *USUAL):
            self.unset.add(name)
            self.script.notes.append(f"{name} is not set in the script: an empty text")
        return ""

    def _of_operator(self, name: str, value: str | None, rest: str, *, quoted: bool) -> str:
        """What `${NAME-…}`, `${NAME%…}`, `${NAME/…}` and their like give."""
        sign, given = (rest[:2], rest[2:]) if rest[:2] in (":-", ":=", ":?", ":+") else (rest[0], rest[1:])
        there = value if sign[0] != ":" else value or None
        if sign in ("-", ":-", "=", ":="):
            found = self._again(given, quoted=quoted) if there is None else there
            if "=" in sign:
                self.variables[name] = [found]
            return found
        if sign in ("?", ":?"):
            return UNKNOWN if there is None else there
        if sign in ("+", ":+"):
            return "" if there is None else self._again(given, quoted=quoted)
        if UNKNOWN in (text := value or ""):
            return UNKNOWN
        if sign in ("#", "%"):
            longest = given[:1] == sign
            return _without(text, self._again(given[longest:], quoted=False), at_end=sign == "%", longest=longest)
        if sign == "/":
            old, _, new = given.removeprefix("/").partition("/")
            old, new = self._again(old, quoted=False), self._again(new, quoted=False)
            plain = not set(old) & set("*?[") and old != ""
            return text.replace(old, new, -1 if given[:1] == "/" else 1) if plain else UNKNOWN
        return {",,": text.lower(), "^^": text.upper()}.get(rest, UNKNOWN)

    def _again(self, text: str, *, quoted: bool) -> str:
        """The value of a text with expansions of its own, as the one behind `:-`."""
        return self._whole(unquoted(self.text.prepare(text), within=quoted))

    def _arithmetic(self, text: str) -> str:
        plain = self._whole(self.text.prepare(text))
        try:
            return str(self._number(ast.parse(plain.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return UNKNOWN

    def _number(self, node: ast.expr) -> int:
        """The value of an expression over whole numbers. Raises `ValueError` for what is none."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            values = self._variable(node.id)
            return self._number(ast.parse(" ".join(values or []).strip(), mode="eval").body)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            return -self._number(node.operand) if isinstance(node.op, ast.USub) else self._number(node.operand)
        if isinstance(node, ast.BinOp):
            result = _computed(self._number(node.left), node.op, self._number(node.right))
            if result.bit_length() < BITS:
                return result
        raise ValueError(ast.dump(node))

    def _output(self, text: str) -> str:
        """What the few commands print whose output is known without running them: folders, and parts of paths."""
        statements = list(self.text.statements(text))
        words = self._expand_all(statements[0].words) if statements else []
        if any(UNKNOWN in word for word in words) or len(statements) > 2:
            return UNKNOWN
        if len(statements) == 2:
            known = words[:1] == ["cd"] and len(words) == 2 and statements[1].words[0] == "pwd"
            return os.path.normpath(os.path.join(self.folder, words[1])) if known else UNKNOWN
        match words:
            case ["pwd"]:
                return self.folder
            case ["dirname", path]:
                return str(PurePosixPath(path).parent)
            case ["basename", path, *end] if len(end) < 2:
                return PurePosixPath(path).name.removesuffix(end[0] if end else "")
            case ["realpath", path] | ["readlink", "-f", path]:
                return os.path.normpath(os.path.join(self.folder, path))
            case ["echo", *parts]:
                return " ".join(parts)
        return UNKNOWN


def _changed(words: Sequence[str]) -> list[str]:
    """Return the variables that a command sets to what is not known here."""
    if words[0] in READERS:
        return [word for word in words[1:] if word.isidentifier()]
    return CHANGED.findall(" ".join(words)) if words[0] == "let" or tuple(words[:2]) == ("(", "(") else []


def _function(words: Sequence[str]) -> str | None:
    """The name of a function that is defined here."""
    if words[0] == "function" and len(words) > 1:
        return words[1]
    return words[0] if tuple(words[1:3]) == ("(", ")") and FUNCTION.fullmatch(words[0]) else None


def _body(words: tuple[str, ...], rest: Iterator[Statement]) -> Iterator[Statement]:
    """Take the statements of a function up to its `}`. `words`: those of its first line."""
    depth = 0
    if "{" in words:
        depth, after = 1, words[words.index("{") + 1 :]
        yield from [Statement(after)] if after else []
    for statement in rest:
        if depth == 0:  # the `{` has a line of its own
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


def _at_index(values: list[str] | None, index: str) -> list[str] | None:
    if values is None or index in ("@", "*"):
        return values
    try:
        return [values[int(index)]]
    except (ValueError, IndexError):
        return None if index.lstrip("-").isdigit() else [UNKNOWN]


def _without(text: str, pattern: str, *, at_end: bool, longest: bool) -> str:
    """The text without the shortest or longest part at one of its ends that a pattern matches."""
    lengths = range(len(text), -1, -1) if longest else range(len(text) + 1)
    for length in lengths:
        part, rest = (text[len(text) - length :], text[: len(text) - length]) if at_end else (
            text[:length], text[length:])  # fmt: skip
        if fnmatchcase(part, pattern):
            return rest
    return text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+", text.strip()) is not None


def _computed(left: int, operator: ast.operator, right: int) -> int:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div() | ast.FloorDiv():
            return int(left / right)  # towards 0, as in a shell
        case ast.Mod():
            return left - right * int(left / right)
        case ast.Pow() if 0 <= right < 64:
            return int(left**right)
    raise ValueError(ast.dump(operator))
