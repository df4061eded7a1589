"""The line of a plugin's own code that an error or a component comes from, for messages.

Lines are `package/module.py:12`, relative to the folder of the package: its place says nothing to a reader who fixes
it. Lines of the core, of the standard library and of what calls plugins for the core are never named.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ramet.errors import ConfigError, ConfigErrors, PluginError, RametError

CALLERS = frozenset(
    {"__main__", "hydra", "omegaconf", "pluggy", "ramet", "ray", "torch"}
)  # modules between core and plugin

CODE = frozenset({".py", ".so"})  # hashed files of a package


def raised_at(error: BaseException) -> str:
    """Return ` (package/module.py:12)`, the innermost line of plugin code that the error passed, or nothing."""
    frames = [(frame, line) for frame, line in _walk(error) if _is_plugin_code(frame)]
    if frames:
        package = _top(frames[0][0])  # a library that the plugin calls is not its own code
        frame, line = [pair for pair in frames if _top(pair[0]) == package][-1]
        return f" ({_relative(frame.f_code, _module(frame))}:{line})"
    if isinstance(error, SyntaxError) and error.filename:  # its module never ran
        return f" ({_below_search_path(Path(error.filename))}:{error.lineno})"
    return ""


def running_at(frame: FrameType) -> str:
    """Return `function (package/module.py:12)` of the innermost plugin code that `frame` runs, otherwise of `frame`."""
    calls: list[FrameType] = []
    outer: FrameType | None = frame
    while outer is not None:
        calls.append(outer)
        outer = outer.f_back
    return _at(next((call for call in calls if _is_plugin_code(call)), frame))


def hanging_at(frame: FrameType, waiting: Iterable[asyncio.Task[Any]], outermost: CodeType) -> str:
    """Return the function and line of plugin code that does not end; nothing if it is not plugin code.

    That is the code that `frame` runs within a call of `outermost`, otherwise the code that a `waiting` task awaits.
    """
    inner: FrameType | None = frame
    while inner is not None and inner.f_code is not outermost:
        if _is_plugin_code(inner):
            return _at(inner)
        inner = inner.f_back
    for task in waiting:
        awaited: Any = task.get_coro()
        plugin_frame: FrameType | None = None
        while (step := getattr(awaited, "cr_frame", None)) is not None:
            plugin_frame = step if _is_plugin_code(step) else plugin_frame
            awaited = awaited.cr_await
        if plugin_frame is not None:
            return _at(plugin_frame)
    return ""


def defined_at(component: object, method: str = "__call__") -> str:
    """Return ` (package/module.py:12)`, where the plugin defines the called method; nothing if that is unknown."""
    inner = written_by_user(component)
    owner = inner if isinstance(inner, type) else type(inner)
    function: Any = inner if inspect.isroutine(inner) else getattr(owner, method, None)
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    module = getattr(function, "__module__", None) or ""
    if code is None or module.partition(".")[0] in CALLERS or code.co_filename.startswith("<"):
        return ""
    return f" ({_relative(code, module)}:{code.co_firstlineno})"


def written_by_user(component: object) -> object:
    """Return the function that `function_tool` or `per_rollout` made a component of; otherwise the component itself."""
    return getattr(component, "user_function", component)


def named(error: ConfigError, who: str, key: str) -> ConfigError:
    """Return a `ConfigError` that a plugin raised in a call, with the component's name before it.

    Unchanged if the message names the component already, or begins with the component's `key`.
    """
    if error.component is not None or key in str(error):
        return error
    at = raised_at(error)
    if isinstance(error, ConfigErrors):
        renamed: ConfigError = ConfigErrors([f"{who}: {problem}{at}" for problem in error.problems])
    else:
        renamed = ConfigError(f"{who}: {error}{at}")
    renamed.component = who
    renamed.__cause__ = error
    return renamed


def failed(error: BaseException, who: str, on: str = "") -> PluginError:
    """Return what to raise where an exception of a plugin is a defect that stops the run."""
    return PluginError(f"{who} raised {type(error).__name__}{on}: {error}{raised_at(error)}")


@contextmanager
def boundary(who: str, key: str, *, on: str = "", passes: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Call a component whose every failure stops the run: `with boundary("policy loss 'mine'", "policy_loss"): …`.

    A `ConfigError` gets the component's name; other errors of the contract, and those that `passes` names, stay
    unchanged. Any other exception becomes a `PluginError` with name, type and line. `on`: the input of the call.
    """
    left_alone: tuple[type[Exception], ...] = (RametError, *passes)
    try:
        yield
    except ConfigError as error:
        raise named(error, who, key) from error
    except left_alone:
        raise
    except (Exception, SystemExit) as error:  # a plugin that takes the process for its own
        raise failed(error, who, on) from error


def code_hash(module: str) -> str | None:
    """Return the sha256 over the code of the package of `module`, None without such code.

    Two installations of one version that differ in a line (editable ones do) have different hashes.
    """
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    digest, has_files = hashlib.sha256(), False
    for folder in spec.submodule_search_locations or ():
        for path in sorted(p for p in Path(folder).rglob("*") if p.suffix in CODE and p.is_file()):
            digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes() + b"\0")
            has_files = True
    if spec.submodule_search_locations is None and spec.origin is not None and Path(spec.origin).is_file():
        digest.update(Path(spec.origin).read_bytes())
        has_files = True
    return digest.hexdigest() if has_files else None


def object_hash(component: object) -> str | None:
    """Return the sha256 over the text of a function, or of the methods of an object's class; None without a text.

    The object's data, and other functions that it calls, are not in it.
    """
    inner = written_by_user(component)
    methods = [method for method in vars(type(inner)).values() if inspect.isfunction(method)]
    try:
        text = "".join(inspect.getsource(function) for function in ([inner] if inspect.isroutine(inner) else methods))
    except OSError:  # typed into a shell
        return None
    return hashlib.sha256(text.encode()).hexdigest() if text else None


def _at(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} ({_relative(frame.f_code, _module(frame))}:{frame.f_lineno})"


def _walk(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield frames and lines from the outermost call to where the error was raised."""
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame, step.tb_lineno
        step = step.tb_next


def _is_plugin_code(frame: FrameType) -> bool:
    top = _top(frame)
    return top not in CALLERS and top not in sys.stdlib_module_names and not frame.f_code.co_filename.startswith("<")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _top(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


def _relative(code: CodeType, module: str) -> str:
    path = Path(code.co_filename)
    depth = module.count(".") + 1 + (path.name == "__init__.py")
    return "/".join(path.parts[-depth:])


def _below_search_path(path: Path, folders: Sequence[str] | None = None) -> str:
    holding = [Path(folder) for folder in (sys.path if folders is None else folders) if folder]
    below = [path.relative_to(folder) for folder in holding if path.is_relative_to(folder)]
    return min(map(str, below), key=len, default=path.name)
