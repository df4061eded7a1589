"""A script that trains with TRL, read by its syntax tree and never run: its arguments of a config and of a trainer."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.migrate.translation import Settings

CALLS = {"GRPOConfig": "train", "GRPOTrainer": "train", "SFTConfig": "sft", "SFTTrainer": "sft"}
POSITIONS = {
    "GRPOConfig": ("output_dir",),
    "SFTConfig": ("output_dir",),
    "GRPOTrainer": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    "SFTTrainer": ("model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class"),
}
ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
ALTERING = ("update", "append", "extend", "insert", "pop", "remove", "setdefault", "clear")
NAMES = ("reward_funcs", "tools")  # their functions are kept by name
DATA = ("train_dataset", "eval_dataset")
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class TrlScript(Settings):
    """The arguments of the calls, and names that only running the script would show."""

    job: str
    functions: frozenset[str] = frozenset()  # that the script itself defines

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)


def read_trl(path: Path) -> TrlScript:
    """Read a script. Raises `ConfigError` if it is not Python, or makes none of these calls."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    calls = [call for call in _calls(tree) if _name(call.func) in CALLS]
    if not calls:
        raise ConfigError(f"{path}: none of these is called: {', '.join(CALLS)}; settings elsewhere are not read")
    jobs = {CALLS[_name(call.func)] for call in calls}
    job = "train" if "train" in jobs else "sft"
    script = TrlScript(job=job, functions=frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)))
    if len(jobs) > 1:
        script.remark("SFT and GRPO are in the script, and GRPO was read")
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for base in {_name(base) for base in node.bases} & CALLS.keys():
            script.remark(f"`{node.name}` is a {base} of the script's own, whose fields are not read")
    reader = _TrlReader(tree, script)
    for name in (name for name, of_job in CALLS.items() if of_job == job):
        of_name = [call for call in calls if _name(call.func) == name]
        if len(of_name) > 1:
            script.remark(f"{name} is called {len(of_name)} times, and the first call was read")
        elif not of_name and name.endswith("Config"):
            script.remark(f"{name} is filled when the script runs, as by its command line: TRL's own values were taken")
        for call in of_name[:1]:
            reader.read(call)
    return script


class _TrlReader:
    """The values of names and options of a script, as far as its text says."""

    def __init__(self, tree: ast.Module, script: TrlScript) -> None:
        self.script = script
        self.assigned: dict[str, list[ast.expr]] = {}
        self.changed: dict[str, dict[str, ast.expr | None]] = {}  # afterwards, by the object's name; None: unclear
        self.options = dict(_options(tree))
        stored = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        self.n_stored = Counter(stored)  # by loops, `+=` and unpacking too
        self.n_stored.update(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))
        self.n_stored.update(_altered(tree))
        conditional = {id(node) for branch in ast.walk(tree) if _is_branch(branch) for node in ast.walk(branch)}
        for target, value in _assignments(tree):
            if isinstance(target, ast.Name):
                self.assigned.setdefault(target.id, []).append(value)
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                attributes = self.changed.setdefault(target.value.id, {})
                is_known = target.attr not in attributes and id(target) not in conditional
                attributes[target.attr] = value if is_known else None

    def read(self, call: ast.Call) -> None:
        """Add what this call was given, and what its result was given afterwards."""
        given = dict(zip(POSITIONS[_name(call.func)], call.args, strict=False))
        for node in call.args[len(given) :]:
            self.script.remark(f"`{ast.unparse(node)[:80]}` is not read: only its place gives its meaning")
        for keyword in call.keywords:
            if keyword.arg is not None:
                given[keyword.arg] = keyword.value
            elif (named := self._keywords(keyword.value)) is not None:
                given |= named
            else:
                self.script.remark(f"`**{ast.unparse(keyword.value)}` is not read")
        given.pop("args", None)
        for name in (name for name, values in self.assigned.items() if call in values):
            for attribute, value in self.changed.get(name, {}).items():
                given[attribute] = ast.Name(attribute) if value is None else value
                if value is None:
                    self.script.unread[attribute] = f"`{name}.{attribute}` is set under a condition, or several times"
        for key, node in given.items():
            if key in self.script.unread:
                continue
            try:
                self.script.values[key] = self._argument(key, node)
            except (ValueError, RecursionError):
                text = " ".join(ast.unparse(node).split())[:80]
                self.script.unread[key] = f"`{text}` is known only when the script runs"

    def _keywords(self, node: ast.expr) -> dict[str, ast.expr] | None:
        """Return the keywords of `**{…}` and `**dict(…)`; None for values that are not written out."""
        node = self._expression(node)
        if isinstance(node, ast.Dict):
            names = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            return None if None in names else {str(n): value for n, value in zip(names, node.values, strict=True)}
        if isinstance(node, ast.Call) and _name(node.func) == "dict" and not node.args:
            named = {word.arg: word.value for word in node.keywords if word.arg is not None}
            return named if len(named) == len(node.keywords) else None
        return None

    def _argument(self, key: str, node: ast.expr) -> Any:
        expression = self._expression(node)
        if key in NAMES:
            items = expression.elts if isinstance(expression, ast.List | ast.Tuple) else [expression]
            return [item.value if isinstance(item, ast.Constant) else ast.unparse(item) for item in items]
        if key in DATA:
            return self._data(node, set())
        if isinstance(expression, ast.Call):
            if key == "peft_config" and _name(expression.func) == "LoraConfig" and not expression.args:
                return {str(word.arg): self._value(word.value) for word in expression.keywords}
            if key == "model" and _name(expression.func) == "from_pretrained" and expression.args:
                return self._value(expression.args[0])  # AutoModelForCausalLM.from_pretrained(NAME, …)
        return self._value(node)

    def _data(self, node: ast.expr, seen: set[str], split: str | None = None) -> dict[str, Any]:
        """Return what `load_dataset` was given, wherever its result was changed afterwards. Raises `ValueError`."""
        parts = [*ast.walk(node)]
        for part in parts:
            if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant) and split is None:
                split = str(part.slice.value)
        for call in _calls(node):
            if (loaded := self._loaded(call)) is not None:
                return ({"split": split} if split else {}) | loaded
        for part in parts:
            if isinstance(part, ast.Name) and part.id in self.assigned and part.id not in seen:
                return self._data(self.assigned[part.id][0], {*seen, part.id}, split)
        raise ValueError(ast.dump(node))

    def _loaded(self, call: ast.Call) -> dict[str, Any] | None:
        """Return the arguments of a call that loads rows; None for another call."""
        name = _name(call.func)
        if name in ("from_json", "from_parquet") and call.args:
            return {"path": name.removeprefix("from_"), "data_files": self._value(call.args[0])}
        given = dict(zip(("path", "name", "data_dir", "data_files"), call.args, strict=False))
        given |= {word.arg: word.value for word in call.keywords if word.arg is not None}
        if name != "load_dataset" or "path" not in given:
            return None
        read = ("path", "name", "data_dir", "split", "data_files")
        return {key: self._value(given[key]) for key in read if key in given}

    def _expression(self, node: ast.expr) -> ast.expr:
        """Return the expression that a name was given, if it is only one."""
        seen: set[str] = set()
        while isinstance(node, ast.Name) and self.n_stored[node.id] == 1 and node.id in self.assigned:
            if node.id in seen:
                break
            seen.add(node.id)
            node = self.assigned[node.id][0]
        return node

    def _value(self, node: ast.expr) -> Any:
        """Return the value of literals, of names that are given one value, of the script's own options, and of their
        arithmetic. Raises `ValueError`.
        """
        node = self._expression(node)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in self.options:
            self.script.remark(f"`{ast.unparse(node)}` is an option of the script: its default was taken")
            return self._value(self.options[node.attr])
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ENVIRONMENT and len(node.args) == 2:
            self.script.remark(f"`{ast.unparse(node)}`: the value without the variable was taken")
            return self._value(node.args[1])
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            try:
                return OPERATORS[type(node.op)](self._value(node.left), self._value(node.right))
            except (TypeError, ArithmeticError, MemoryError) as error:
                raise ValueError(str(error)) from error
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.FormattedValue) else part for part in node.values)
            return "".join(str(self._value(part)) for part in parts)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item) for item in node.elts]
        try:
            return ast.literal_eval(node)
        except (TypeError, SyntaxError, MemoryError, RecursionError) as error:
            raise ValueError(str(error)) from error


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of assignments with their values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value


def _options(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the defaults of what argparse reads, and of the fields of classes."""
    for call in _calls(tree):
        names = [str(a.value) for a in call.args if isinstance(a, ast.Constant) and str(a.value).startswith("-")]
        if _name(call.func) != "add_argument" or not names:
            continue
        words = {word.arg: word.value for word in call.keywords}
        name = max(names, key=len).lstrip("-").replace("-", "_")
        if isinstance(dest := words.get("dest"), ast.Constant):
            name = str(dest.value)
        if "default" in words:
            yield name, words["default"]
        elif isinstance(action := words.get("action"), ast.Constant) and action.value in ("store_true", "store_false"):
            yield name, ast.Constant(action.value == "store_false")
    for body in (node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        fields = (statement for statement in body if isinstance(statement, ast.Assign | ast.AnnAssign))
        for target, value in (pair for statement in fields for pair in _assignments(statement)):
            if isinstance(value, ast.Call) and _name(value.func) == "field":
                value = next((word.value for word in value.keywords if word.arg == "default"), value)
            if isinstance(target, ast.Name):
                yield target.id, value


def _altered(tree: ast.AST) -> Iterator[str]:
    """Yield the names of lists and dicts that are changed after they were made."""
    for node in ast.walk(tree):
        is_set = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        is_called = isinstance(node, ast.Attribute) and node.attr in ALTERING
        if (
            isinstance(node, ast.Subscript | ast.Attribute)
            and (is_set or is_called)
            and isinstance(node.value, ast.Name)
        ):
            yield node.value.id


def _is_branch(node: ast.AST) -> bool:
    """Whether a statement runs under a condition other than `__name__ == "__main__"`."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) != "__name__ == '__main__'"
    return isinstance(node, ast.For | ast.While)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
