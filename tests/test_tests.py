"""Every test can fail: it asserts something, no assertion always holds, and no `raises` takes any error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = sorted(path for folder in ("core/tests", "plugins/*/tests", "tests") for path in ROOT.glob(f"{folder}/**/*.py"))
# Their checks raise AssertionError: the conformance kit, and what every engine must pass.
CHECKS = [*(ROOT / "core/src/ramet/testing").rglob("*.py"), *(ROOT / "core/tests/engines").glob("engine_*.py")]
ANYTHING = {"Exception", "BaseException"}
ASSERTING = ("assert_", "raises", "warns", "fail")  # calls that raise by themselves
Function = ast.FunctionDef | ast.AsyncFunctionDef


def findings(tree: ast.Module, helpers: frozenset[str] = frozenset()) -> Iterator[str]:
    """`LINE: what is wrong` of a file. `helpers`: functions of other files that assert."""
    for node in ast.walk(tree):
        problem = None
        if isinstance(node, ast.Assert):
            problem = _always_holds(node.test)
        elif isinstance(node, ast.Call):
            problem = _takes_anything(node)
        if problem:
            yield f"{node.lineno}: {problem}"
    asserting = _asserting(tree, helpers)
    for function in _functions(tree):
        if function.name.startswith("test_") and function.name not in asserting:
            yield f"{function.lineno}: {function.name} asserts nothing"


def _always_holds(test: ast.expr) -> str | None:
    for node in _conditions(test):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            if any(_true(value) or _with_itself(value, calls=True) for value in node.values):
                return f"a part of `{ast.unparse(node)}` always holds"
    for node in ast.walk(test):
        if _with_itself(node, calls=False):
            return f"`{ast.unparse(node)}` compares a thing with itself"
        elif _length_at_least_0(node):
            return f"`{ast.unparse(node)}` holds for every length"
    return f"`{ast.unparse(test)}` is always true" if _true(test) else None


def _conditions(test: ast.expr) -> Iterator[ast.expr]:
    """What is asked for its truth, and not for its value as in `a == (b or c)`."""
    yield test
    for part in test.values if isinstance(test, ast.BoolOp) else ():
        yield from _conditions(part)


def _true(node: ast.expr) -> bool:
    """True whatever the code under test does: a constant, a display with elements, a generator, a constructor."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts)
    if isinstance(node, ast.Call):
        name = _name(node.func).lstrip("_")
        return name[:1].isupper() and not name.isupper()
    return isinstance(node, ast.GeneratorExp | ast.Lambda | ast.JoinedStr) or (
        isinstance(node, ast.Dict) and bool(node.keys)
    )


def _with_itself(node: ast.AST, *, calls: bool) -> bool:
    """`x == x`. Two calls may differ, so they count only where `calls` says so. `x != x` asks for NaN."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return False
    if not isinstance(node.ops[0], ast.Eq | ast.Is | ast.LtE | ast.GtE):
        return False
    same = ast.dump(node.left) == ast.dump(node.comparators[0])
    return same and (calls or not any(isinstance(part, ast.Call) for part in ast.walk(node)))


def _length_at_least_0(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.GtE):
        return False
    limit = node.comparators[0]
    is_length = isinstance(node.left, ast.Call) and _name(node.left.func) == "len"
    return is_length and isinstance(limit, ast.Constant) and limit.value == 0


def _takes_anything(call: ast.Call) -> str | None:
    if _name(call.func) != "raises" or any(_says_something(keyword) for keyword in call.keywords):
        return None
    kinds = {_name(part) for part in ast.walk(call.args[0]) if isinstance(part, ast.expr)} if call.args else set()
    return f"`{ast.unparse(call)}` takes any error" if kinds & ANYTHING else None


def _says_something(keyword: ast.keyword) -> bool:
    """A pattern that does not match every message."""
    pattern = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
    return keyword.arg in ("match", "check") and not (isinstance(pattern, str) and re.search(pattern, ""))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _asserting(tree: ast.Module, helpers: frozenset[str] = frozenset()) -> frozenset[str]:
    """Functions and methods of a file that assert, or that call one that does."""
    functions = list(_functions(tree))
    found = helpers | {function.name for function in functions if _asserts(function)}
    while more := {function.name for function in functions if function.name not in found and found & _called(function)}:
        found |= more
    return found


def _asserts(function: Function) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(function)) or any(
        name.startswith(ASSERTING) for name in _called(function)
    )


def _called(function: Function) -> set[str]:
    return {_name(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _helpers() -> frozenset[str]:
    """The functions of `CHECKS`, also as a parameter `check`, and what a `conftest.py` offers."""
    kit = {one.name for path in CHECKS for one in _functions(_parsed(path))}
    checks = {name for name in kit if name.startswith(("check_", "expect_"))} | {"check"}
    shared = {name for path in TESTS if path.name == "conftest.py" for name in _asserting(_parsed(path))}
    return frozenset(checks | shared)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_test_can_fail(path: Path) -> None:
    assert list(findings(_parsed(path), _helpers())) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("assert f() == 1 or True", "a part of `f() == 1 or True` always holds"),
        ("assert x and (y or [1])", "a part of `y or [1]` always holds"),
        ("assert f(1) == 2 or f(1) == f(1)", "a part of `f(1) == 2 or f(1) == f(1)` always holds"),
        ("assert x.y == x.y", "`x.y == x.y` compares a thing with itself"),
        ("assert all(v <= v for v in x)", "`v <= v` compares a thing with itself"),
        ("assert len(x) >= 0", "`len(x) >= 0` holds for every length"),
        ("assert (x == 1, 'one')", "`(x == 1, 'one')` is always true"),
        ("assert 'it works'", "`'it works'` is always true"),
        ("assert (v == 1 for v in x)", "`(v == 1 for v in x)` is always true"),
        ("assert Path(x)", "`Path(x)` is always true"),
        ("assert lambda: x == 1", "`lambda: x == 1` is always true"),
        ("with pytest.raises(Exception): f()", "`pytest.raises(Exception)` takes any error"),
        (
            "with pytest.raises((OSError, BaseException)): f()",
            "`pytest.raises((OSError, BaseException))` takes any error",
        ),
        ("with pytest.raises(Exception, match='.*'): f()", "`pytest.raises(Exception, match='.*')` takes any error"),
        ("f()", "test_it asserts nothing"),
        ("helper()", "test_it asserts nothing"),
        ("x == 1", "test_it asserts nothing"),
    ],
)
def test_what_cannot_fail_is_found(body: str, problem: str) -> None:
    tree = ast.parse(f"def helper(): ...\ndef test_it():\n    {body}\n")
    found = [one.partition(": ")[2] for one in findings(tree)]
    assert problem in found and found.count(problem) == 1


@pytest.mark.parametrize(
    "body",
    [
        "assert f(1) == f(1)",
        "assert x != x",
        "assert x == (y or [1])",
        "assert x == 1 or y == 1",
        "assert len(x) >= 1",
        "assert not Path(x).exists()",
        "helper()",
        "with pytest.raises(OSError): f()",
        "with pytest.raises(Exception, match='no'): f()",
        "torch.testing.assert_close(x, y)",
        "check_tool(f)",
        "async def inner():\n        assert x\n    run(inner)",
    ],
)
def test_what_can_fail_is_left_alone(body: str) -> None:
    tree = ast.parse(f"def helper():\n    assert x\ndef test_it():\n    {body}\n")
    assert list(findings(tree, frozenset({"check_tool"}))) == []


def test_the_files_that_take_longest_exist() -> None:
    """`conftest.py` orders and marks by their paths: one that moved would come last, and run among the light ones."""
    named = re.findall(r'^    "(\S+\.py)",$', (ROOT / "conftest.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) > 10 and not [path for path in named if not (ROOT / path).is_file()]
