"""A shell's values of `$X`, `${X:-a}`, `$((…))` and `$(…)`, as far as they are known without running it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from ramet.migrate.shell_text import NAME, Expansion, ShellText, Statement, unquoted

UNKNOWN = "\uf8ff"  # stands in a word for a value that is known only when the script runs
INDEX = re.compile(r"\[([^\]]*)\]")
FROM_HERE = ("HOME", "USER")
USUAL = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")  # scripts add to them, and no launch reads them
OF_SCRIPT = ("0", "BASH_SOURCE")
BITS = 64  # of a number
COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: int.__eq__, ast.NotEq: int.__ne__, ast.Lt: int.__lt__, ast.LtE: int.__le__, ast.Gt: int.__gt__,
    ast.GtE: int.__ge__,
}  # fmt: skip


class ShellValues:
    """The variables of a script, and the words that they make."""

    def __init__(self, path: Path) -> None:
        self.path = path  # of the script that is read
        self.text = ShellText()
        self.notes: list[str] = []
        self.folder = os.getcwd()  # the working directory, which `cd` changes
        self.variables: dict[str, list[str]] = {}  # arrays; a usual variable is a list of one
        self.arguments: list[str] = []
        self.unset: set[str] = set()
        self.functions: dict[str, list[Statement]] = {}

    def printed(self, name: str, arguments: Sequence[str]) -> str:
        """The output of a function of the script, where that is known."""
        raise NotImplementedError

    def expand_all(self, words: Iterable[str]) -> list[str]:
        return [expanded for word in words for expanded in self._expand(word)]

    def _expand(self, word: str) -> list[str]:
        """Return what a word becomes: several words of `"${A[@]}"` and `"$@"`, and of `$A` with spaces."""
        expansion = self.text.expansion(word) if len(word) == 1 else None
        if expansion is None or expansion.kind == "nothing":
            return [self.whole(word)]
        name = expansion.text.removesuffix("[@]")
        is_array = name == "@" or (name != expansion.text and name.isidentifier())
        if expansion.kind == "parameter" and is_array:
            values = self._variable(name) or []
        else:
            values = [self._value(expansion)]
        return values if expansion.quoted else [part for value in values for part in value.split()]

    def whole(self, word: str) -> str:
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
        return self._of_environment(name)

    def _of_environment(self, name: str) -> list[str] | None:
        """The value that a variable has here: only of a number, such as NNODES, since no secret is one."""
        value = os.environ.get(name, "")
        if name in FROM_HERE and value:
            return [value]
        if not value.isdecimal():
            return None
        if (note := f"{name} is not set in the script: {value}, as in the environment here") not in self.notes:
            self.notes.append(note)
        return [value]

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
            self.notes.append(f"{name} is not set in the script: an empty text")
        return ""

    def _of_operator(self, name: str, value: str | None, rest: str, *, quoted: bool) -> str:
        """The value of `${NAME-…}`, `${NAME%…}`, `${NAME/…}` and their like."""
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
        """The value of a text that has expansions, as the one behind `:-`."""
        return self.whole(unquoted(self.text.prepare(text), within=quoted))

    def _arithmetic(self, text: str) -> str:
        plain = self.whole(self.text.prepare(text))
        try:
            if (choice := re.fullmatch(r"([^?:]*)\?([^?:]*):([^?:]*)", plain)) is not None:
                plain = choice[2] if self._number(_parsed(choice[1])) else choice[3]
            return str(self._number(_parsed(plain)))
        except (SyntaxError, ValueError, LookupError, ZeroDivisionError, RecursionError):
            return UNKNOWN

    def _number(self, node: ast.expr) -> int:
        """The value of an expression over whole numbers. Raises `ValueError` for other texts."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            values = self._variable(node.id)
            return self._number(_parsed(" ".join(values or [])))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            return -self._number(node.operand) if isinstance(node.op, ast.USub) else self._number(node.operand)
        if isinstance(node, ast.BinOp):
            result = _computed(self._number(node.left), node.op, self._number(node.right))
            if result.bit_length() < BITS:
                return result
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            compare = COMPARISONS[type(node.ops[0])]
            return int(compare(self._number(node.left), self._number(node.comparators[0])))
        raise ValueError(ast.dump(node))

    def _output(self, text: str) -> str:
        """The output of the few commands that need not run for it: folders, and parts of paths."""
        statements = list(self.text.statements(text))
        words = self.expand_all(statements[0].words) if statements else []
        if any(UNKNOWN in word for word in words):
            return UNKNOWN
        if len(statements) == 3 and words[:1] == ["echo"]:  # how many GPUs: `echo $X | tr ',' '\n' | wc -l`
            is_count = [statement.words for statement in statements[1:]] == [("tr", ",", "\\n"), ("wc", "-l")]
            return str(1 + " ".join(words[1:]).count(",")) if is_count else UNKNOWN
        if len(statements) > 2:
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
            case [name, *arguments] if name in self.functions:
                return self.printed(name, arguments)
            case ["echo", "-n", *parts] | ["echo", *parts] if not "".join(parts[:1]).startswith("-"):
                return " ".join(parts)
        return UNKNOWN


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


def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


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
