"""A tool from a function, a thread for what blocks, and what an outage is."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import inspect
import threading
import types
import typing
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from typing import Any, ParamSpec, TypeVar, Union

from ramet.errors import InfraError, RametError, ToolError
from ramet.types import Tool, ToolCall, ToolResult, ToolSchema

P = ParamSpec("P")
T = TypeVar("T")
# How Python says that an argument makes no sense. A function tool that raises another exception may be broken.
MODEL_MISTAKES = (ValueError, TypeError, LookupError, ArithmeticError, SyntaxError)
CLIENTS = frozenset(  # of services and networks: packages whose exceptions come from outside
    {"aiohttp", "anthropic", "grpc", "http", "httpcore", "httpx", "openai", "ray", "requests", "socket", "ssl"}
    | {"urllib", "urllib3", "websockets"}
)
_BAD_ADDRESSES = ("InvalidURL", "LocationParseError", "UnsupportedProtocol")  # of clients: nothing was sent
_BROKEN_ANSWERS = ("JSONDecodeError", "SSLCertVerificationError", "ClientConnectorCertificateError")
_SERVICE_STATUS = frozenset({401, 402, 403, 407, 408, 409, 423, 425, 429})  # the other 4xx refuse the request itself
_OUTAGES = (InfraError, ConnectionError, TimeoutError, MemoryError, BrokenExecutor, asyncio.IncompleteReadError)
_FILE_MISTAKES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_OUTAGE_ERRNOS = frozenset(
    {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE}
    | {errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN}
    | {errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EAGAIN}
)
_SQLITE_OUTAGES = frozenset({5, 6, 10, 13})  # SQLITE_BUSY, LOCKED, IOERR, FULL (https://sqlite.org/rescode.html)
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


class FunctionError(ToolError):
    """An error of a function tool that goes to the model; its cause is the exception."""


class _FunctionTool:
    def __init__(self, function: Callable[..., Any], schema: ToolSchema, nullable: frozenset[str]) -> None:
        self.user_function = function
        self.schema = schema
        self._nullable = nullable
        self._signature = inspect.signature(function)
        self._is_async = inspect.iscoroutinefunction(function)

    async def __call__(self, call: ToolCall) -> ToolResult:
        try:
            bound = self._signature.bind(**call.arguments)
        except TypeError as error:
            raise ToolError(f"{self.schema.name}: {error}") from error
        for name, value in bound.arguments.items():
            if value is not None or name not in self._nullable:
                _check_type(self.schema, name, value)
        try:
            if self._is_async:
                return ToolResult(text=str(await self.user_function(*bound.args, **bound.kwargs)))
            return ToolResult(text=str(await run_blocking(self.user_function, *bound.args, **bound.kwargs)))
        except (Exception, SystemExit) as error:
            if isinstance(error, RametError) or is_outage(error):
                raise
            raise FunctionError(f"{type(error).__name__}: {error}") from error


def function_tool(function: Callable[..., Any], *, name: str | None = None) -> Tool:
    """A tool from a function: its signature and docstring become the schema, its return value the text.

    Parameters must be annotated with str, int, float, bool, list or dict (or one of them `| None`). A plain function
    runs in a thread. The model gets its exceptions as a text, except outages (`is_outage`): they mask the rollout.
    Raises `TypeError` for another signature.
    """
    hints = typing.get_type_hints(function)
    properties, required, nullable = {}, [], []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"parameter {parameter.name!r} cannot be given by name, as a model gives arguments")
        json_type, may_be_none = _json_type(hints.get(parameter.name), parameter.name)
        properties[parameter.name] = {"type": json_type}
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
        if may_be_none or parameter.default is None:
            nullable.append(parameter.name)
    schema = ToolSchema(
        name=name or function.__name__,
        description=inspect.getdoc(function) or "",
        parameters={"type": "object", "properties": properties, "required": required},
    )
    return _FunctionTool(function, schema, frozenset(nullable))


def is_outage(error: BaseException) -> bool:
    """Whether a function tool's exception is a failure of a service, a network, a disk or the machine.

    The model gets all others: its arguments can make a function raise nearly anything, and must not mask its rollout.
    """
    return _is_outage(error, frozenset())


def _is_outage(error: BaseException, seen: frozenset[int]) -> bool:
    """Check an error and its causes, which may form a circle (`raise e from e`): `seen`: the errors above it."""
    if id(error) in seen:
        return False  # an outage in the circle is found where the error was met first
    seen |= {id(error)}
    if isinstance(error, BaseExceptionGroup):
        return any(_is_outage(inner, seen) for inner in error.exceptions)
    if isinstance(error, _OUTAGES) or (error.__cause__ is not None and _is_outage(error.__cause__, seen)):
        return True
    if isinstance(error, ValueError):  # some are an OSError too: an address makes no sense, or a service's answer
        return isinstance(error, OSError) and type(error).__name__ in _BROKEN_ANSWERS
    if any(base.__module__.partition(".")[0] in CLIENTS for base in type(error).__mro__):
        return _is_network_outage(error, seen)
    if isinstance(error, OSError):
        return error.errno in _OUTAGE_ERRNOS or (error.errno is None and not isinstance(error, _FILE_MISTAKES))
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_OUTAGES


def _is_network_outage(error: BaseException, seen: frozenset[int]) -> bool:
    """Whether an exception of a client is more than a refusal of its request."""
    holders = (error, getattr(error, "response", None))
    codes = [getattr(holder, name, None) for holder in holders for name in ("code", "status", "status_code")]
    status = next((code for code in codes if isinstance(code, int)), None)
    if status is not None and 400 <= status < 500:
        return status in _SERVICE_STATUS
    if type(error).__name__ == "URLError":  # its reason is an exception, or a text: the address makes no sense
        reason = getattr(error, "reason", None)
        return isinstance(reason, BaseException) and _is_outage(reason, seen)
    return type(error).__name__ not in _BAD_ADDRESSES


async def run_blocking(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a separate thread and wait for it, so that the event loop continues. Raises its exceptions.

    A thread cannot be ended: when the call is cancelled (a time-out, a deadline), it is not waited for any more and its
    result is dropped. `asyncio.to_thread` has few threads: as many calls that hang would block all others, and the end
    of the run. Context variables are the caller's.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def resolve(set_outcome: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            set_outcome(value)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (done.set_result, function(*args, **kwargs))
        except BaseException as error:
            outcome = (done.set_exception, _raisable(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(resolve, *outcome)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="ramet-tool", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise InfraError(f"this machine has no thread left: {error}") from error
    return await done


def _raisable(error: BaseException) -> BaseException:
    """A future cannot keep every exception: asyncio would raise one that ends the program out of its own loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
    wrapped.__cause__ = error
    return wrapped


def _json_type(hint: Any, name: str) -> tuple[str, bool]:
    """The JSON type of an annotation, and whether it allows None."""
    members = list(typing.get_args(hint)) if typing.get_origin(hint) in (Union, types.UnionType) else [hint]
    some = [member for member in members if member is not type(None)]
    python = typing.get_origin(some[0]) or some[0] if len(some) == 1 else None
    if python not in _JSON_TYPES:
        raise TypeError(
            f"parameter {name!r} must be annotated with one of str, int, float, bool, list, dict (or one of them "
            f"| None), not {hint!r}"
        )
    return _JSON_TYPES[python], len(some) < len(members)


def _check_type(schema: ToolSchema, name: str, value: Any) -> None:
    expected = schema.parameters["properties"][name]["type"]
    allowed = next(python for python, json_type in _JSON_TYPES.items() if json_type == expected)
    fits = isinstance(value, allowed) or (expected == "number" and isinstance(value, int))
    if not fits or (isinstance(value, bool) and expected != "boolean"):
        raise ToolError(f"{schema.name}: {name} must be of type {expected}, got {value!r}")
