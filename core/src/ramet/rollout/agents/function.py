"""The agent `function`: a coroutine function of the user's, in the process of the rollout worker."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from ramet.errors import ConfigError, PluginError
from ramet.plugins.plugin_code import raised_at
from ramet.rollout.config import FunctionConfig
from ramet.types import AgentContext, AgentResult, Task

KEY = "rollout_step.params.function"


class FunctionAgent:
    """Calls `await function(task, ctx, **arguments)`.

    It returns an `AgentResult`, or the answer as a text, or None for no answer.
    """

    def __init__(self, config: FunctionConfig) -> None:
        """Raises `ConfigError` for a function that cannot be found or does not begin with `async def`."""
        self.forks = cast(Literal["replay", "none"], config.forks)
        self.settings = config.settings
        self.name, self._function = config.function, _found(config.function)
        self._arguments = dict(config.arguments)
        try:
            inspect.signature(self._function).bind(None, None, **self._arguments)
        except TypeError as error:
            given = ", ".join(["task", "ctx", *(f"{name}=…" for name in self._arguments)])
            raise ConfigError(f"{KEY}={self.name}: it cannot be called with ({given}): {error}") from error

    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        result = await self._function(task, ctx, **self._arguments)
        if result is None or isinstance(result, str):
            return AgentResult(answer=result)
        if not isinstance(result, AgentResult):
            raise PluginError(
                f"{KEY}={self.name} returned {result!r:.80}; return an AgentResult, the answer as a text, or None"
            )
        return result


def _found(text: str) -> Callable[..., Any]:
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise ConfigError(f"{KEY}={text!r}: give a coroutine function, as FILE.py:NAME or MODULE:NAME")
    folder = str(Path.cwd())
    try:
        function = getattr(_module(place, folder), name, None)
    except (Exception, SystemExit) as error:
        what = f"cannot be imported: {type(error).__name__}: {error}{raised_at(error)}"
        raise ConfigError(f"{KEY}={text}: {what} (working directory: {folder})") from error
    if not inspect.iscoroutinefunction(function):
        kind = "a function without `async`" if inspect.isroutine(function) else f"{function!r:.80}"
        found = "there is no such function" if function is None else f"it is {kind}"
        raise ConfigError(
            f"{KEY}={text}: {found}; define it with `async def {name}(task, ctx)`. A program that blocks runs with "
            "rollout_step=command"
        )
    return cast(Callable[..., Any], function)


def _module(place: str, folder: str) -> ModuleType:
    """A module, or a file of code relative to `folder`, which is searched for modules too, and then the file's own."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not place.endswith(".py"):
        return importlib.import_module(place)
    file = Path(folder, place)
    if (beside := str(file.parent)) not in sys.path:
        sys.path.append(beside)
    name = f"ramet_agent_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"no code in {place}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
