"""Running one program: prints a last bare expression, reports errors by the program's own lines, ends faithfully.

User code may replace any name, so whatever is needed after it ran is bound before. The exit code is the kernel's.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import linecache
import os
import sys
import threading
import traceback
from types import CodeType, ModuleType
from typing import NoReturn

FILE = "<python>"
_exit, _write, _settrace, _setprofile = os._exit, os.write, sys.settrace, sys.setprofile
_suppress, _Report, _Frames = contextlib.suppress, traceback.TracebackException, traceback.StackSummary
_threads, _main_thread = threading.enumerate, threading.main_thread()
_shutdown_threads, _run_exit_functions = threading._shutdown, atexit._run_exitfuncs  # type: ignore[attr-defined]


def prepare() -> None:
    """Prepare the process, before any program of it."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed before a limit is kept
    threading.excepthook = _report_thread


def run(code: str) -> NoReturn:
    """Run `code` as `__main__` of this process, then end the process."""
    out, err = sys.stdout, sys.stderr
    status = _execute(code, FILE, _fresh_main())
    for step in (_shutdown_threads, _run_exit_functions, lambda: sys.stdout.flush(), out.flush, err.flush):
        with _suppress(BaseException):
            step()
    _exit(status)


class Cells:
    """Programs that run one after the other with the same variables."""

    def __init__(self) -> None:
        self.main = _fresh_main()
        self.count = 0
        self.streams = (sys.stdout, sys.stderr)

    def run(self, code: str) -> int:
        """The exit code that the program would have had by itself. Threads that are not daemons are waited for."""
        self.count += 1
        name = FILE if self.count == 1 else f"{FILE[:-1]} {self.count}>"
        status = _execute(code, name, self.main)
        for step in (_join_threads, lambda: sys.stdout.flush(), *(stream.flush for stream in self.streams)):
            with _suppress(BaseException):
                step()
        return status


def _execute(code: str, name: str, main: dict[str, object]) -> int:
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    error: BaseException | None = None
    try:
        exec(compile_program(code, name), main)
    except BaseException as raised:
        error = raised
    _settrace(None)
    _setprofile(None)
    return 0 if error is None else _report(error)


def _join_threads() -> None:
    for thread in _threads():
        if thread is not _main_thread and not thread.daemon:
            thread.join()


def compile_program(code: str, name: str = FILE) -> CodeType:
    """Compile; a last statement that is a bare expression, but no call of `print`, is printed.

    The tree is changed in place, so line numbers stay the source's.
    """
    try:
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except RecursionError:  # nested too deep for a tree in Python, perhaps not for the compiler
        return compile(code, name, "exec", dont_inherit=True)
    assert isinstance(tree, ast.Module)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or _is_print(last.value):
        return compile(code, name, "exec", dont_inherit=True)
    call = ast.Call(func=ast.Name(id="print", ctx=ast.Load()), args=[last.value], keywords=[])
    last.value = ast.fix_missing_locations(ast.copy_location(call, last.value))
    return compile(tree, name, "exec", dont_inherit=True)


def _is_print(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def _fresh_main() -> dict[str, object]:
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main.__dict__


def _report(error: BaseException) -> int:
    """Write what Python would write for this end of a program; returns the exit code."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF
        _print(f"{error.code}\n")
        return 1
    _print_error(error)
    return 1


def _report_thread(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is not None and not isinstance(hook.exc_value, SystemExit):
        _print_error(hook.exc_value)


def _print_error(error: BaseException) -> None:
    try:
        report = _Report(type(error), error, error.__traceback__)
        _keep_own_frames(report)
        _print("".join(report.format()))
    except BaseException:  # out of memory, or an exception whose __str__ raises
        _print(type(error).__name__ + "\n")


def _keep_own_frames(report: traceback.TracebackException) -> None:
    """Drop the frames of the harness and of libraries: their paths differ from machine to machine."""
    report.stack = _Frames.from_list([frame for frame in report.stack if _is_own(frame.filename)])
    for inner in (report.__cause__, report.__context__, *(report.exceptions or ())):
        if inner is not None:
            _keep_own_frames(inner)


def _is_own(file: str) -> bool:
    return file == FILE or (file.startswith(f"{FILE[:-1]} ") and file.endswith(">"))


def _print(text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[_write(2, data) :]
