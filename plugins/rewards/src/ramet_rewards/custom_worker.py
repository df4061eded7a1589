"""The process that runs a function of the user's: `python -m ramet_rewards.custom_worker SOCKET FILE FUNCTION`.

It is the main thread of a process, so the function may use signals. JSON lines as `processes` says.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

KEYWORDS = ("data_source", "solution_str", "ground_truth", "extra_info")
MODULE = "ramet_custom_reward"


class UnusableFile(Exception):
    """The file does not load, or the function has no form that is known."""


def main() -> None:
    number, path, name = sys.argv[1:4]
    with socket.socket(fileno=int(number)) as client, client.makefile("rw", encoding="ascii") as lines:
        _reply(lines, "ready")
        function: Callable[..., Any] | None = None
        for line in lines:
            _reply(lines, "prepared")
            try:
                function = function or _load(Path(path), name)
                _reply(lines, _answer(function, json.loads(line), Path(path)))
            except UnusableFile as error:
                _reply(lines, {"problem": str(error)})


def _load(path: Path, name: str) -> Callable[..., Any]:
    sys.path.insert(0, str(path.parent))  # what is beside the file
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UnusableFile(f"{path} cannot be loaded: {_described(error, path)}") from error
    found = getattr(module, name, None)
    if not callable(found):
        there = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise UnusableFile(f"{path} has no function {name!r}; it has: {', '.join(there) or 'none'}")
    _takes_list(found)
    function: Callable[..., Any] = found
    return function


def _takes_list(function: Callable[..., Any]) -> bool:
    """Whether it is the form for a whole group: one required parameter, and none of the keywords."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.name in ("solution_str", "ground_truth") or p.kind is p.VAR_KEYWORD for p in parameters):
        return False
    if sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == 1:
        return True
    raise UnusableFile(
        f"{getattr(function, '__name__', function)}{inspect.signature(function)} has neither form; allowed: one "
        f"parameter, a list of dicts, or keyword parameters of {', '.join(KEYWORDS)}"
    )


def _answer(function: Callable[..., Any], request: Mapping[str, Any], path: Path) -> dict[str, Any]:
    takes_list = _takes_list(function)
    if "form" in request:
        return {"takes_list": takes_list}
    more = request["arguments"]
    try:
        if takes_list:
            value = function(request["data"], **more)
        else:
            value = function(**_keywords(function, request["sample"]), **more)
        return {"value": _plain(value)}
    except (Exception, SystemExit) as error:
        return {"raised": _described(error, path)}


def _keywords(function: Callable[..., Any], sample: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(
        zip(KEYWORDS, (sample["data_source"], sample["output"], sample["answer"], sample["extra_info"]), strict=True)
    )
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {name: value for name, value in given.items() if takes_all or name in parameters}


def _plain(value: Any) -> Any:
    """As JSON. Numbers of numpy and torch become Python's; texts of a dict stay out of the parts by themselves."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items() if not isinstance(part, str | bytes)}
    if isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0:
        return [_plain(one) for one in value]
    number = float(value)
    return number if math.isfinite(number) else str(number)  # JSON has no NaN; the core refuses the text and shows it


def _described(error: BaseException, path: Path) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f" (line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _reply(lines: TextIO, message: object) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
