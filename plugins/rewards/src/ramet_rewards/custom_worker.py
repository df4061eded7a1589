"""The process that runs a function of the user's: `python -m ramet_rewards.custom_worker SOCKET FILE FUNCTION`.

It is the main thread of a process of a `ProcessPool`, so the function may use signals.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import math
import sys
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ramet.helpers import Caller

KEYWORDS = ("data_source", "solution_str", "ground_truth", "extra_info")
MODULE = "ramet_custom_reward"


class UnusableFile(Exception):
    """The file does not load, or the function has no form that is known."""


def main() -> None:
    path, name = Path(sys.argv[2]), sys.argv[3]
    caller = Caller()
    caller.end_with()
    caller.ready()
    function: Callable[..., Any] | None = None
    for request in caller.requests():
        try:
            function = function or _load(path, request["source"], name)
            caller.reply(_answer(function, request, path))
        except UnusableFile as error:
            caller.reply({"problem": str(error)})


def _load(path: Path, source: str, name: str) -> Callable[..., Any]:
    """`source` is what the file held when the run began: one that is edited meanwhile changes no scores."""
    sys.path.insert(0, str(path.parent))  # modules next to the file
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        exec(compile(source, path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise UnusableFile(f"{path} cannot be loaded: {_described(error, path)}") from error
    member = getattr(module, name, None)
    if not callable(member) or inspect.isclass(member):
        there = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise UnusableFile(f"{path} has no function {name!r}; it has: {', '.join(there) or 'none'}")
    try:
        _takes_list(member)
    except (TypeError, ValueError) as error:  # some functions of C have no signature
        raise UnusableFile(f"{path}: {name}: {error}") from error
    function: Callable[..., Any] = member
    return function


def _takes_list(function: Callable[..., Any]) -> bool:
    signature = inspect.signature(function)
    name = getattr(function, "__name__", function)
    return takes_list(f"{name}{signature}", signature.parameters.values())


def takes_list(described: str, parameters: Collection[inspect.Parameter]) -> bool:
    """Whether it is the form for a complete group: one required parameter, and none of the keywords.

    Raises `UnusableFile` for a function, called `described`, that has neither form.
    """
    if any(p.name in ("solution_str", "ground_truth") or p.kind is p.VAR_KEYWORD for p in parameters):
        return False
    if sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == 1:
        return True
    raise UnusableFile(
        f"{described} has neither form; allowed: one parameter, a list of dicts, or keyword parameters of "
        f"{', '.join(KEYWORDS)}"
    )


def _answer(function: Callable[..., Any], request: Mapping[str, Any], path: Path) -> dict[str, Any]:
    takes_list = _takes_list(function)
    more = request["arguments"]
    if "form" in request:
        _check_arguments(function, more, takes_list=takes_list)
        return {"takes_list": takes_list}
    try:
        if takes_list:
            value = function(request["data"], **more)
        else:
            value = function(**_keywords(function, request["sample"]), **more)
        if inspect.isawaitable(value):
            value = asyncio.run(_result(value))
        return {"value": _plain(value)}
    except (Exception, SystemExit) as error:
        return {"raised": _described(error, path)}


def _check_arguments(function: Callable[..., Any], more: Mapping[str, Any], *, takes_list: bool) -> None:
    signature = inspect.signature(function)
    keywords = dict.fromkeys(KEYWORDS)
    passed = {} if takes_list else {name: None for name in keywords if name in signature.parameters}
    try:
        signature.bind(*([[]] if takes_list else []), **passed, **more)
    except TypeError as error:
        raise UnusableFile(
            f"{getattr(function, '__name__', function)}{signature} cannot be called with arguments "
            f"{json.dumps(more)}: {error}"
        ) from error


async def _result(value: Awaitable[Any]) -> Any:
    return await value


def _keywords(function: Callable[..., Any], sample: Mapping[str, Any]) -> dict[str, Any]:
    keywords = dict(
        zip(KEYWORDS, (sample["data_source"], sample["output"], sample["answer"], sample["extra_info"]), strict=True)
    )
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {name: value for name, value in keywords.items() if takes_all or name in parameters}


def _plain(value: Any) -> Any:
    """Write a result as JSON.

    Numbers of numpy and torch become Python's; texts of a dict stay out of the parts by themselves.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items() if not isinstance(part, str | bytes)}
    if isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0:
        return [_plain(item) for item in value]
    number = float(value)
    return number if math.isfinite(number) else str(number)  # JSON has no NaN; the core refuses the text and shows it


def _described(error: BaseException, path: Path) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f" (line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


if __name__ == "__main__":
    main()
