"""Helpers that make small plugins small: a tool from a function, a thread for what blocks, tasks from a file, text
from outside for the prompt of another model.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import inspect
import itertools
import re
import threading
import types
import typing
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Union

from ramet.errors import ConfigError, InfraError, RametError, ToolError
from ramet.io.json_rows import UnreadableFile, read_json_rows
from ramet.types import Task, Tool, ToolCall, ToolResult, ToolSchema, user_prompt

P = ParamSpec("P")
T = TypeVar("T")
# `<|im_end|>`, `<｜User｜>`, `<start_of_turn>`, `</s>`, `<<SYS>>`, `<seed:bos>`, `<|"|>`; `[/INST]`, `[gMASK]`,
# `[|user|]`, `[@BOS@]`; `]~b]`, `[e~[`, `]!d~[`, `]<]start of image[>[`; `>>ANSWER<<`. And wide and small forms of
# their signs, which a tokenizer that normalises text (NFKC) takes for the others. `filter[status]` stays.
_CHAT_MARKUP = re.compile(
    r"[<＜﹤](?=[^ \t\r\n<>]{1,80}[>＞﹥])"
    r"|[\[［](?=[/／]?(?:[|@｜＠]\w+[|@｜＠]?|(?=\w*[A-ZＡ-Ｚ]|control_)[A-Za-z_Ａ-Ｚａ-ｚ]\w+)[\]］]|e~\[)"
    r"|[\]］](?=~|!\w~\[|<\])|>(?=>[A-Z]{2,80}<<)"
)
_SPELLED = {"<": "&lt;", "[": "&#91;", "]": "&#93;", ">": "&gt;"}
# How Python says that an argument makes no sense. A function tool that raises another exception may be broken.
MODEL_MISTAKES = (ValueError, TypeError, LookupError, ArithmeticError, SyntaxError)
CLIENTS = frozenset(  # of services: packages whose exceptions come from outside
    {"aiohttp", "anthropic", "grpc", "http", "httpcore", "httpx", "openai", "ray", "requests", "urllib3", "websockets"}
)
_NETWORK = CLIENTS | {"socket", "ssl", "urllib"}
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
    """What a function tool raised that goes to the model; its cause is the exception."""


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
    runs in a thread. What it raises goes to the model as a text, except what failed outside (`is_outage`): that masks
    the rollout. Raises `TypeError` for another signature.
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
    """Whether what a function tool raised is a failure of a service, a network, a disk or the machine.

    All else goes to the model: what it wrote can make a function raise nearly anything, and must not mask its rollout.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(is_outage(inner) for inner in error.exceptions)
    if isinstance(error, _OUTAGES) or (error.__cause__ is not None and is_outage(error.__cause__)):
        return True
    if isinstance(error, ValueError):  # some are an OSError too: an address makes no sense, or a service's answer
        return isinstance(error, OSError) and type(error).__name__ in _BROKEN_ANSWERS
    if any(base.__module__.partition(".")[0] in _NETWORK for base in type(error).__mro__):
        return _is_network_outage(error)
    if isinstance(error, OSError):
        return error.errno in _OUTAGE_ERRNOS or (error.errno is None and not isinstance(error, _FILE_MISTAKES))
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_OUTAGES


def _is_network_outage(error: BaseException) -> bool:
    """Whether an exception of a client is more than a refusal of what it was asked for."""
    holders = (error, getattr(error, "response", None))
    found = [getattr(holder, name, None) for holder in holders for name in ("code", "status", "status_code")]
    status = next((one for one in found if isinstance(one, int)), None)
    if status is not None and 400 <= status < 500:
        return status in _SERVICE_STATUS
    if type(error).__name__ == "URLError":  # its reason is an exception, or a text: the address makes no sense
        reason = getattr(error, "reason", None)
        return isinstance(reason, BaseException) and is_outage(reason)
    return type(error).__name__ not in _BAD_ADDRESSES


async def run_blocking(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a thread of its own and wait for it, so that the event loop goes on. Raises what it raises.

    A thread cannot be ended: when the call is cancelled (a time-out, a deadline), it is not waited for any more and
    what it returns is dropped. `asyncio.to_thread` has few threads: as many calls that hang would block all others, and
    the end of the run. Context variables are those of the caller.
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
    """A future cannot hold every exception: asyncio would raise one that ends the program out of its own loop."""
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


def neutralise_chat_markup(text: str) -> str:
    """Return `text` with nothing in it that a chat model's tokenizer takes for a special token.

    For text from outside (an answer of the policy, a page, a server's description) in a prompt that another program
    tokenises: servers parse special tokens wherever they stand, so such text could end its message and write the next
    one. The first sign of whatever has the form of a special token of any known family is spelled as in HTML:
    `&lt;|im_end|>`, `&#91;INST]`. What Ramet tokenises itself needs it not: see `Untrusted`.
    """
    return _CHAT_MARKUP.sub(lambda sign: _SPELLED[unicodedata.normalize("NFKC", sign[0])], text)


def from_jsonl(
    path: str | Path, *, question: str = "question", answer: str = "answer", limit: int | None = None
) -> Iterator[Task]:
    """Tasks from a file of JSON lines, or of one JSON array. A list of answers stays a list.

    Ids are `<file stem>/<row>`, rows counted from 0. Raises `ConfigError` that names file and row, counted from 1 as
    editors do.
    """
    path = Path(path)
    for number, values in itertools.islice(json_rows(path), limit):
        yield _task(path, number, values, question, answer)


def json_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, or of one JSON array, each with its number, counted from 1 as editors do.

    Raises `ConfigError` that names file and row; for a file that is not there `from` a `FileNotFoundError`.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no file {str(path)!r}") from FileNotFoundError(path)
    try:
        for row in read_json_rows(path):
            if row.problem is not None:
                raise ConfigError(f"{path}, row {row.number}: {row.problem}")
            yield row.number, row.values
    except UnreadableFile as error:
        raise ConfigError(f"{path}: {error}") from error


def _task(path: Path, number: int, values: Mapping[str, Any], question: str, answer: str) -> Task:
    where = f"{path}, row {number}"
    for key in (question, answer):
        if values.get(key) is None:
            raise ConfigError(f"{where}: no key {key!r} (or null); found {', '.join(values) or 'nothing'}")
    gold = values[answer]
    answers = tuple(str(a) for a in gold) if isinstance(gold, list) else (str(gold),)
    return Task(
        id=f"{path.stem}/{number - 1}",
        prompt=user_prompt(str(values[question])),
        answer=answers,
        data_source=path.stem,
    )
